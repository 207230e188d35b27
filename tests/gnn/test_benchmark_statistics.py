"""Paired statistics against scipy, by enumeration, and on cases with a known answer."""

import itertools

import numpy as np
import pytest
import scipy.stats

from manifoldnorm.gnn.benchmark_statistics import (
    holm,
    relative_gain,
    summarise,
    two_level_interval,
)


def test_gains_are_oriented() -> None:
    assert relative_gain([0.5, 0.6], [0.4, 0.8], 1).tolist() == pytest.approx([25, -25])
    assert relative_gain([0.5, 0.6], [0.4, 0.8], -1).tolist() == pytest.approx([-25, 25])
    with pytest.raises(ValueError, match="zero"):
        relative_gain([1.0], [0.0], 1)
    with pytest.raises(ValueError, match="paired"):
        relative_gain([1.0], [1.0, 2.0], 1)


def test_ten_wins_of_ten() -> None:
    summary = summarise(np.linspace(1, 2, 10))
    assert summary.wins == 10
    assert summary.sign_p == pytest.approx(2 / 2**10)
    assert summary.wilcoxon_p == pytest.approx(2 / 2**10)
    assert 1 < summary.low < 1.5 < summary.high < 2


@pytest.mark.parametrize("seed", range(5))
def test_wilcoxon_is_exact_with_and_without_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    for d in (random.normal(0.5, 1, 9), random.integers(-2, 4, 9).astype(float)):
        nonzero = d[d != 0]
        ranks = scipy.stats.rankdata(np.abs(nonzero))
        statistic = abs(ranks[nonzero > 0].sum() - ranks.sum() / 2)
        signs = np.array(list(itertools.product([0, 1], repeat=len(ranks))))
        expected = np.mean(np.abs(signs @ ranks - ranks.sum() / 2) >= statistic - 1e-9)
        assert summarise(d).wilcoxon_p == pytest.approx(expected)


def test_few_seeds_are_not_testable() -> None:
    for count in (1, 3, 5):
        summary = summarise(np.arange(1.0, count + 1))
        assert summary.sign_p is None
        assert summary.wilcoxon_p is None
    assert summarise(np.arange(1.0, 7)).sign_p == pytest.approx(2 / 2**6)


def test_equal_arms_are_not_testable() -> None:
    summary = summarise(np.zeros(10))
    assert (summary.mean, summary.low, summary.high) == (0, 0, 0)
    assert summary.wilcoxon_p is None


def test_the_bootstrap_is_repeatable_and_covers() -> None:
    random = np.random.default_rng(1)
    draws = [summarise(random.normal(1.0, 1.0, 20)) for _ in range(60)]
    covered = np.mean([summary.low <= 1 <= summary.high for summary in draws])
    assert 0.8 < covered <= 1
    d = np.arange(10.0)
    assert summarise(d) == summarise(d)


def test_two_levels_are_wider_than_one() -> None:
    random = np.random.default_rng(2)
    base = random.uniform(0.3, 0.5, (8, 30))
    arm = base * (1.1 + 0.1 * random.standard_normal((1, 30)))
    gains = relative_gain(arm.mean(axis=1), base.mean(axis=1), 1)
    low, high = two_level_interval(arm, base, 1)
    summary = summarise(gains)
    assert low < summary.low
    assert high > summary.high
    assert low < gains.mean() < high


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.002] * 3) == pytest.approx([0.006] * 3)
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_differences_are_named() -> None:
    with pytest.raises(ValueError, match="non-empty"):
        summarise([])
