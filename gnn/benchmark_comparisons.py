"""Compare each arm with LayerNorm, paired by seed, in every cell of the benchmark."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_metrics import task_metric
from manifoldnorm.gnn.benchmark_plan import BACKBONES, BLOCKS, FEATURES, OBJECTIVES, TASKS
from manifoldnorm.gnn.benchmark_references import BEST_REFERENCE, Reference
from manifoldnorm.gnn.benchmark_statistics import (
    PairedSummary,
    holm,
    relative_gain,
    summarise,
    two_level_interval,
)
from manifoldnorm.gnn.benchmark_store import RunResult

BASELINE = "layernorm"
HEADLINE = ("blind", "gat", "post", "surrogate")
"""The degree-blind track in which the rule and its falsifiers are judged."""

Cell = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Comparison:
    """An arm against LayerNorm in one cell and on one test set.

    Attributes
    ----------
    task, features, backbone, block, objective, arm, test_set : str
    base, value : float
        Mean metric of LayerNorm and of the arm over the paired seeds.
    gain : PairedSummary
        Relative improvement in per cent, + is better.
    seeds : tuple of int
        The paired seeds.
    gains : tuple of float
        The gain of each seed.
    two_level_low, two_level_high : float
        95 % bootstrap interval of the gain over seeds and test graphs.
    wilcoxon_holm : float or None
        Wilcoxon's p, corrected for the tasks and arms of the track; None where it is not testable.
    headroom : float or None
        (value - base) / (best reference - base): 1 reaches the classical reference.
    base_spearman, spearman : float
        Mean rank correlation of score and degree.
    """

    task: str
    features: str
    backbone: str
    block: str
    objective: str
    arm: str
    test_set: str
    base: float
    value: float
    gain: PairedSummary
    seeds: tuple[int, ...]
    gains: tuple[float, ...]
    two_level_low: float
    two_level_high: float
    wilcoxon_holm: float | None
    headroom: float | None
    base_spearman: float
    spearman: float

    @property
    def track(self) -> tuple[str, str, str, str]:
        """Features, backbone, block and objective."""
        return (self.features, self.backbone, self.block, self.objective)


def orientation(task: str) -> int:
    """Give +1 if more of the task's metric is better, -1 if less is."""
    return task_metric(task, 0).orientation


def compare(results: Iterable[RunResult], references: Iterable[Reference] = ()) -> list[Comparison]:
    """Compare all arms that share seeds with LayerNorm, in a fixed order.

    Runs that differ in training or test settings never share a cell with each other; mixing them is an error.

    Raises
    ------
    ValueError
        If the runs come from different presets.
    """
    runs: dict[Cell, dict[str, dict[int, RunResult]]] = defaultdict(lambda: defaultdict(dict))
    settings = set()
    for result in results:
        config = result.config
        runs[config.cell][config.arm][config.seed] = result  # type: ignore[index]
        settings.add(replace(config, task=TASKS[0], arm=BASELINE, backbone=BACKBONES[0], features=FEATURES[0],
                             objective=OBJECTIVES[0], block=BLOCKS[0], seed=0))  # fmt: skip
    if len(settings) > 1:
        raise ValueError("the runs come from different presets, and their test sets differ: report each alone")
    best = {
        (reference.task, reference.test_set): reference.value
        for reference in references
        if BEST_REFERENCE[reference.task] == reference.name
    }
    comparisons = [
        comparison
        for cell in sorted(runs, key=_cell_order)
        for arm in ARMS
        if arm != BASELINE
        for test_set in ("same_size", "larger")
        if (comparison := _compare_arm(cell, arm, test_set, runs[cell], best)) is not None
    ]
    return _with_holm(comparisons)


def _cell_order(cell: Cell) -> tuple[int, ...]:
    task, features, backbone, block, objective = cell
    return (
        FEATURES.index(features),
        BACKBONES.index(backbone),
        BLOCKS.index(block),
        OBJECTIVES.index(objective),
        TASKS.index(task),
    )


def _compare_arm(
    cell: Cell,
    arm: str,
    test_set: str,
    runs: Mapping[str, Mapping[int, RunResult]],
    best: Mapping[tuple[str, str], float],
) -> Comparison | None:
    base_runs, arm_runs = runs.get(BASELINE, {}), runs.get(arm, {})
    seeds = sorted(base_runs.keys() & arm_runs.keys())
    if not seeds:
        return None
    task, features, backbone, block, objective = cell
    sign = orientation(task)
    field = "per_graph" if test_set == "same_size" else "per_graph_large"
    base_graphs = np.array([getattr(base_runs[seed], field) for seed in seeds])
    arm_graphs = np.array([getattr(arm_runs[seed], field) for seed in seeds])
    base, value = base_graphs.mean(axis=1), arm_graphs.mean(axis=1)
    gains = relative_gain(value, base, sign)
    low, high = two_level_interval(arm_graphs, base_graphs, sign)
    reference = best.get((task, test_set))
    room = None if reference is None else sign * (reference - float(base.mean()))
    return Comparison(
        task, features, backbone, block, objective, arm, test_set,
        base=float(base.mean()),
        value=float(value.mean()),
        gain=summarise(gains),
        seeds=tuple(seeds),
        gains=tuple(float(gain) for gain in gains),
        two_level_low=low,
        two_level_high=high,
        wilcoxon_holm=None,
        headroom=sign * float(value.mean() - base.mean()) / room if room is not None and room > 0 else None,
        base_spearman=float(np.mean([base_runs[seed].spearman_degree for seed in seeds])),
        spearman=float(np.mean([arm_runs[seed].spearman_degree for seed in seeds])),
    )  # fmt: skip


def _with_holm(comparisons: list[Comparison]) -> list[Comparison]:
    """Correct Wilcoxon's p over the tasks and arms of each track and test set."""
    families: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, comparison in enumerate(comparisons):
        if comparison.gain.wilcoxon_p is not None:
            families[(*comparison.track, comparison.test_set)].append(index)
    corrected = list(comparisons)
    for members in families.values():
        adjusted = holm([comparisons[index].gain.wilcoxon_p or 0.0 for index in members])
        for index, p in zip(members, adjusted, strict=True):
            corrected[index] = replace(comparisons[index], wilcoxon_holm=p)
    return corrected


def primary_p_values(comparisons: Iterable[Comparison]) -> dict[str, float]:
    """Correct the headline's sign tests (PostDeg against LayerNorm, same-size graphs) over the tasks."""
    tested = {
        comparison.task: comparison.gain.sign_p
        for comparison in comparisons
        if comparison.track == HEADLINE
        and comparison.arm == "postdeg"
        and comparison.test_set == "same_size"
        and comparison.gain.sign_p is not None
    }
    return dict(zip(tested, holm([p for p in tested.values() if p is not None]), strict=True))
