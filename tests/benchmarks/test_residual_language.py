"""What the language benchmark concludes from its runs, and how it refuses a bad text."""

import math
from pathlib import Path

import pytest

from benchmarks import residual
from benchmarks.residual_language import Outcome, frequency_entropy, summarize, verdict
from benchmarks.residual_loop import judge
from benchmarks.residual_nvfp4 import decibels
from manifoldnorm.datasets.text import CharacterText


def outcome(label: str, lr: float, seed: int, loss: float) -> Outcome:
    return Outcome(label, lr, seed, 4, loss, loss, 1.0, 100, 1.0)


def sweep(label: str, losses: dict[float, list[float]]) -> list[Outcome]:
    return [outcome(label, lr, seed, loss) for lr, values in losses.items() for seed, loss in enumerate(values)]


def test_a_scheme_is_judged_at_its_own_best_rate_with_its_usable_range_and_collapses() -> None:
    runs = sweep(
        "a", {1e-3: [2.3, 2.3], 2e-3: [2.05, 2.07], 4e-3: [2.0, 2.02], 8e-3: [2.0, 3.4], 16e-3: [math.nan, 3.5]}
    )
    (summary,) = summarize(runs, collapse_above=3.1)
    assert summary.best_lr == 4e-3
    assert summary.mean == pytest.approx(2.01)
    assert summary.usable == (2e-3, 4e-3)
    assert (summary.collapsed, summary.runs) == (3, 10)


def test_differences_below_the_spread_are_called_that() -> None:
    runs = sweep("base", {1e-3: [2.00, 2.04, 2.08]})
    runs += sweep("same", {1e-3: [1.97, 2.01, 2.06]})
    runs += sweep("worse", {1e-3: [2.30, 2.34, 2.36]})
    runs += sweep("better", {1e-3: [1.80, 1.84, 1.86]})
    base, same, worse, better = summarize(runs, collapse_above=3.1)
    assert verdict(base, base) == "the baseline"
    assert "within the spread" in verdict(same, base)
    assert "+0.293: higher" in verdict(worse, base)
    assert "lower" in verdict(better, base)


def test_one_seed_gives_no_verdict() -> None:
    base, other = summarize(sweep("base", {1e-3: [2.0]}) + sweep("other", {1e-3: [1.0]}), collapse_above=3.1)
    assert "no verdict" in verdict(other, base)
    assert "one seed shows no difference" in judge([-1.0])
    assert "lower" in judge([-1.0, -1.1])
    assert "within the spread" in judge([-1.0, 1.1])


def test_frequency_entropy_of_two_equally_frequent_characters() -> None:
    text = CharacterText.from_string("ab" * 10_000, source="made up")
    assert frequency_entropy(text) == pytest.approx(math.log(2), abs=1e-3)
    assert decibels(100.0, 1.0) == pytest.approx(20.0)


def test_a_missing_or_tiny_text_file_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="check the path"):
        residual.main(["language", "--quick", "--text", str(tmp_path / "none.txt")])
    tiny = tmp_path / "tiny.txt"
    tiny.write_text("tiny")
    with pytest.raises(SystemExit, match="at least 10000 characters, got 4"):
        residual.main(["loop", "--quick", "--text", str(tiny)])
