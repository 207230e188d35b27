"""Paired statistics over seeds: bootstrap intervals, exact tests, Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.stats

FloatArray = npt.NDArray[np.float64]

RESAMPLES = 10_000
TESTABLE_SEEDS = 6
"""Below six pairs no exact two-sided test over seeds can reach 0.05: 2 / 2**5 = 0.0625."""


def relative_gain(arm: npt.ArrayLike, base: npt.ArrayLike, orientation: int) -> FloatArray:
    """Compute 100 * orientation * (arm - base) / abs(base), in per cent; + is better."""
    arm_values, base_values = np.asarray(arm, dtype=np.float64), np.asarray(base, dtype=np.float64)
    if arm_values.shape != base_values.shape:
        raise ValueError(f"arm and base must be paired; got shapes {arm_values.shape} and {base_values.shape}")
    if np.any(base_values == 0):
        raise ValueError("base must not be zero: a relative gain is not defined")
    return 100.0 * orientation * (arm_values - base_values) / np.abs(base_values)


@dataclass(frozen=True)
class PairedSummary:
    """Paired differences over seeds.

    Attributes
    ----------
    mean, low, high : float
        Mean and 95 % percentile bootstrap interval over the seeds.
    wins, losses, seeds : int
    sign_p, wilcoxon_p : float or None
        Exact two-sided p values; None with fewer than six seeds ("not testable") or when all differences are zero.
    """

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    seeds: int
    sign_p: float | None
    wilcoxon_p: float | None


def summarise(differences: npt.ArrayLike) -> PairedSummary:
    """Summarise paired differences.

    Examples
    --------
    >>> from manifoldnorm.gnn.benchmark_statistics import summarise
    >>> summary = summarise([1.0, 2.0, 1.5, 0.5, 1.2, 0.8, 1.1, 0.9, 1.3, 1.4])
    >>> summary.wins, round(summary.sign_p, 5), round(summary.wilcoxon_p, 5)
    (10, 0.00195, 0.00195)
    >>> summarise([1.0, 2.0, 1.5]).sign_p is None
    True
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or d.size == 0:
        raise ValueError(f"differences must be a non-empty list of numbers; got shape {d.shape}")
    low, high = bootstrap_interval(d)
    wins, losses = int((d > 0).sum()), int((d < 0).sum())
    testable = d.size >= TESTABLE_SEEDS and wins + losses > 0
    return PairedSummary(
        mean=float(d.mean()),
        low=low,
        high=high,
        wins=wins,
        losses=losses,
        seeds=d.size,
        # A tie is no win: it stays in n, which makes the test conservative.
        sign_p=float(scipy.stats.binomtest(wins, d.size, 0.5).pvalue) if testable else None,
        wilcoxon_p=_exact_wilcoxon(d) if testable else None,
    )


def _exact_wilcoxon(d: FloatArray) -> float:
    """Wilcoxon's signed-rank test, zeros dropped; exact also with ties, where scipy's exact method is not."""
    d = d[d != 0]
    ranks = scipy.stats.rankdata(np.abs(d))
    if np.unique(ranks).size == d.size:
        return float(scipy.stats.wilcoxon(d, zero_method="wilcox", method="exact").pvalue)
    # The distribution over all sign patterns, as counts of twice the rank sum: average ranks are multiples of 1/2.
    counts: FloatArray = np.ones(1)
    for rank in np.rint(2 * ranks).astype(int):
        counts = np.convolve(counts, np.r_[1.0, np.zeros(rank - 1), 1.0]).astype(np.float64)
    centre = ranks.sum()
    distance = np.abs(np.arange(counts.size) - centre)
    observed = abs(2 * ranks[d > 0].sum() - centre)
    return float(counts[distance >= observed - 1e-9].sum() / counts.sum())


def bootstrap_interval(values: FloatArray, *, seed: int = 0) -> tuple[float, float]:
    """Compute the 95 % percentile bootstrap interval of the mean (10,000 resamples, fixed random numbers)."""
    draws = np.random.default_rng(seed).integers(values.size, size=(RESAMPLES, values.size))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def two_level_interval(arm: FloatArray, base: FloatArray, orientation: int, *, seed: int = 0) -> tuple[float, float]:
    """Bootstrap the mean relative gain over training seeds and test graphs, both resampled.

    Parameters
    ----------
    arm, base : array, shape (seeds, graphs)
        The metric of each test graph.
    orientation : int
        +1 if more is better, -1 if less is.
    """
    random = np.random.default_rng(seed)
    seeds, graphs = arm.shape
    graph_weights = random.multinomial(graphs, np.full(graphs, 1 / graphs), size=RESAMPLES) / graphs
    seed_weights = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    gains = relative_gain(arm @ graph_weights.T, base @ graph_weights.T, orientation)
    low, high = np.quantile((gains * seed_weights.T).sum(axis=0), [0.025, 0.975])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for the number of tests by Holm's step-down method.

    Examples
    --------
    >>> from manifoldnorm.gnn.benchmark_statistics import holm
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted
