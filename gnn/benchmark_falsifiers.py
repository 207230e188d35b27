"""The four falsifiers, judged by the rules that were written down in ``protocol.md`` before they were run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from manifoldnorm.gnn.benchmark_comparisons import HEADLINE, Comparison
from manifoldnorm.gnn.benchmark_plan import TASKS
from manifoldnorm.gnn.benchmark_statistics import TESTABLE_SEEDS, FloatArray, PairedSummary, bootstrap_interval

Verdict = Literal["fires", "does not fire", "no gain to explain", "helps", "no clear gain", "not testable", "not run"]

SOURCES = ("inverse_root", "core", "pagerank")
"""Other topology scales: reported with F4, by no rule that fires."""

MARGIN = 0.5
"""Per cent of the metric within which a gate counts as equal to PostDeg."""

DEGREE_BLIND_BACKBONES = ("gat", "sage")
"""Backbones that average over neighbours; sums and GCN's normalisation show the degree."""


@dataclass(frozen=True)
class Judgement:
    """A falsifier's verdict on one task.

    Attributes
    ----------
    falsifier : str
        "F1" to "F4".
    question, arm, task : str
        What is tested, the arm (or backbone) that tests it, and the task.
    verdict : str
    gain : PairedSummary or None
        Of the arm over LayerNorm, in per cent.
    threshold : float or None
        What the arm's gain would have to reach, in per cent.
    note : str
    """

    falsifier: str
    question: str
    arm: str
    task: str
    verdict: Verdict
    gain: PairedSummary | None
    threshold: float | None
    note: str = ""


_HALF_OF_THE_GAIN = (
    ("F1", "graphwise", "is it a scale of the whole graph?", True),
    ("F2", "extra_norm", "is it one more normalisation?", True),
    ("F2", "renormalised", "does it survive a LayerNorm after it?", True),
    ("F4", "permuted", "does a wrong node's degree do as well?", False),
    ("F4", "random", "does any positive scale do as well?", False),
)
"""Arms that fire from half of PostDeg's gain on; the last entry: whether their interval must lie above 0 too."""


def judge(comparisons: Iterable[Comparison]) -> list[Judgement]:
    """Judge all falsifiers on all tasks, in the degree-blind track and on the graphs of the training sizes."""
    found = {(c.track, c.task, c.arm): c for c in comparisons if c.test_set == "same_size"}

    def headline(task: str, arm: str) -> Comparison | None:
        return found.get((HEADLINE, task, arm))

    judgements = [
        _half_of_the_gain(falsifier, question, arm, task, headline(task, "postdeg"), headline(task, arm), with_interval)
        for falsifier, arm, question, with_interval in _HALF_OF_THE_GAIN
        for task in TASKS
    ]
    judgements += [_gate(task, headline(task, "postdeg"), headline(task, "gate")) for task in TASKS]
    judgements += [
        _backbone(task, backbone, found.get((("blind", backbone, *HEADLINE[2:]), task, "postdeg")))
        for backbone in DEGREE_BLIND_BACKBONES
        for task in TASKS
    ]
    judgements += [_source(task, arm, headline(task, arm)) for arm in SOURCES for task in TASKS]
    return sorted(judgements, key=lambda judgement: judgement.falsifier)


def fired(judgements: Iterable[Judgement]) -> list[str]:
    """List the falsifiers that fire on at least one task."""
    return sorted({judgement.falsifier for judgement in judgements if judgement.verdict == "fires"})


def _unjudged(rule: Comparison | None, arm: Comparison | None) -> tuple[Verdict, str] | None:
    if rule is None or arm is None:
        return "not run", ""
    fewest = min(rule, arm, key=lambda comparison: comparison.gain.seeds)
    if fewest.gain.seeds < TESTABLE_SEEDS:
        return "not testable", _too_few(fewest)
    if rule.gain.low <= 0:
        return "no gain to explain", "PostDeg's own interval does not lie above 0"
    return None


def _half_of_the_gain(
    falsifier: str,
    question: str,
    arm: str,
    task: str,
    rule: Comparison | None,
    tested: Comparison | None,
    with_interval: bool,
) -> Judgement:
    unjudged = _unjudged(rule, tested)
    if unjudged or rule is None or tested is None:
        verdict, note = unjudged or ("not run", "")
        return Judgement(falsifier, question, arm, task, verdict, None if tested is None else tested.gain, None, note)
    gains, _ = _on_shared_seeds(rule, tested)
    threshold = float(gains.mean()) / 2
    fires = tested.gain.mean >= threshold and (tested.gain.low > 0 or not with_interval)
    return Judgement(falsifier, question, arm, task, "fires" if fires else "does not fire", tested.gain, threshold)


def _gate(task: str, rule: Comparison | None, tested: Comparison | None) -> Judgement:
    question = "does a learned gate without degree do as well?"
    unjudged = _unjudged(rule, tested)
    if unjudged or rule is None or tested is None:
        verdict, note = unjudged or ("not run", "")
        return Judgement("F3", question, "gate", task, verdict, None if tested is None else tested.gain, None, note)
    rule_gains, gate_gains = _on_shared_seeds(rule, tested)
    threshold = float(rule_gains.mean()) - MARGIN
    fires = tested.gain.mean >= threshold
    low, high = bootstrap_interval(rule_gains - gate_gains)
    note = f"PostDeg minus gate {low:+.1f} to {high:+.1f}"
    if (low < MARGIN) != fires:
        note += " (the interval does not settle it)"
    return Judgement("F3", question, "gate", task, "fires" if fires else "does not fire", tested.gain, threshold, note)


def _on_shared_seeds(rule: Comparison, tested: Comparison) -> tuple[FloatArray, FloatArray]:
    """Give both arms' gains on the seeds that both have: a benchmark may be stopped in between."""
    own = dict(zip(rule.seeds, rule.gains, strict=True))
    shared = [(own[seed], gain) for seed, gain in zip(tested.seeds, tested.gains, strict=True) if seed in own]
    both = np.array(shared, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _backbone(task: str, backbone: str, tested: Comparison | None) -> Judgement:
    question = "does the sign flip on a degree-blind backbone?"
    if tested is None:
        return Judgement("F4", question, backbone, task, "not run", None, None)
    if tested.gain.seeds < TESTABLE_SEEDS:
        return Judgement("F4", question, backbone, task, "not testable", tested.gain, None, _too_few(tested))
    verdict: Verdict = "fires" if tested.gain.mean < 0 else "does not fire"
    return Judgement("F4", question, backbone, task, verdict, tested.gain, None, "fires below 0")


def _source(task: str, arm: str, tested: Comparison | None) -> Judgement:
    question = "does another topology scale help too?"
    if tested is None:
        return Judgement("F4", question, arm, task, "not run", None, None)
    if tested.gain.seeds < TESTABLE_SEEDS:
        return Judgement("F4", question, arm, task, "not testable", tested.gain, None, _too_few(tested))
    return Judgement("F4", question, arm, task, "helps" if tested.gain.low > 0 else "no clear gain", tested.gain, None)


def _too_few(tested: Comparison) -> str:
    return f"seeds: {tested.gain.seeds}, at least {TESTABLE_SEEDS} needed"
