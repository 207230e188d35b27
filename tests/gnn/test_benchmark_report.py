"""The report: comparisons with the right pairs and signs, falsifiers by their written rules, complete files."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from manifoldnorm.gnn.benchmark_comparisons import Comparison, compare, primary_p_values
from manifoldnorm.gnn.benchmark_falsifiers import fired, judge
from manifoldnorm.gnn.benchmark_plan import TASKS, RunConfig
from manifoldnorm.gnn.benchmark_references import Reference
from manifoldnorm.gnn.benchmark_report import build_report, write_report
from manifoldnorm.gnn.benchmark_store import BrokenLine, RunResult
from tests.gnn.tiny_runs import TINY, instant_worker, made_up_result, tiny_plan

REFERENCES = [
    Reference(task, name, test_set, value, 1.0 if name == "exact" else None)
    for task, name, value in (
        ("independent_set", "exact", 0.5),
        ("influence", "lazy greedy", 0.5),
        ("dismantling", "collective influence", 0.2),
    )
    for test_set in ("same_size", "larger")
]

GAINS = {"postdeg": 10.0, "graphwise": 1.0, "extra_norm": 0.2, "renormalised": 0.3, "gate": 2.0, "permuted": -1.0,
         "random": -2.0, "core": 0.5}  # fmt: skip


def results(gains: dict[str, float], *, seeds: int = 10, backbone: str = "gat") -> list[RunResult]:
    """Make runs up whose arms differ from LayerNorm by these per cents on every task."""
    found = []
    for task in TASKS:
        sign = -1 if task == "dismantling" else 1
        for seed in range(seeds):
            base = 0.4 + 0.001 * seed
            for arm, gain in {"layernorm": 0.0, **gains}.items():
                config = replace(TINY, task=task, arm=arm, seed=seed, backbone=backbone)
                # Spread over the seeds, and the same mean.
                factor = 1 + sign * (gain + (0.05 if seed % 2 else -0.05) * (arm != "layernorm")) / 100
                found.append(made_up_result(config, base * factor))
    return found


def by_name(comparisons: list[Comparison]) -> dict[tuple[str, str], Comparison]:
    return {(c.task, c.arm): c for c in comparisons if c.test_set == "same_size"}


def test_comparisons_are_paired_oriented_and_corrected() -> None:
    found = by_name(compare(results(GAINS), REFERENCES))
    for task in TASKS:
        c = found[task, "postdeg"]
        assert c.gain.mean == pytest.approx(10)
        assert (c.gain.wins, c.gain.seeds) == (10, 10)
        assert found[task, "permuted"].gain.losses == 10
        assert c.wilcoxon_holm is not None
        # 3 tasks x 8 arms in the family.
        assert c.wilcoxon_holm == pytest.approx(24 * 2 / 2**10)
    assert found["independent_set", "postdeg"].headroom == pytest.approx(0.1 * 0.4045 / (0.5 - 0.4045), rel=1e-2)
    assert found["dismantling", "postdeg"].headroom == pytest.approx(0.1 * 0.4045 / (0.4045 - 0.2), rel=1e-2)
    assert primary_p_values(compare(results(GAINS))) == pytest.approx(dict.fromkeys(TASKS, 3 * 2 / 2**10))


def test_only_seeds_that_both_arms_have_are_paired() -> None:
    some = [r for r in results(GAINS) if r.config.arm != "postdeg" or r.config.seed < 7]
    assert by_name(compare(some))["influence", "postdeg"].gain.seeds == 7
    assert ("influence", "pre") not in by_name(compare(some))


def test_presets_do_not_mix() -> None:
    other = made_up_result(replace(TINY, arm="postdeg", steps=9), 0.5)
    with pytest.raises(ValueError, match="different presets"):
        compare([*results({}), other])


def verdicts(runs: list[RunResult]) -> dict[tuple[str, str, str], str]:
    return {(j.falsifier, j.arm, j.task): j.verdict for j in judge(compare(runs))}


def test_no_falsifier_fires_on_small_gains() -> None:
    found = verdicts(results(GAINS))
    for task in TASKS:
        for falsifier, arm in (
            ("F1", "graphwise"), ("F2", "extra_norm"), ("F2", "renormalised"), ("F3", "gate"),
            ("F4", "permuted"), ("F4", "random"), ("F4", "gat"),
        ):  # fmt: skip
            assert found[falsifier, arm, task] == "does not fire", (falsifier, arm)
        assert found["F4", "sage", task] == "not run"
        assert found["F4", "core", task] == "helps"
        assert found["F4", "pagerank", task] == "not run"
    assert fired(judge(compare(results(GAINS)))) == []


@pytest.mark.parametrize(
    ("arm", "gain", "falsifier"),
    [
        ("graphwise", 5.0, "F1"),
        ("extra_norm", 6.0, "F2"),
        ("renormalised", 9.0, "F2"),
        ("gate", 9.5, "F3"),
        ("permuted", 5.0, "F4"),
        ("random", 5.0, "F4"),
    ],
)
def test_each_falsifier_fires_at_its_threshold(arm: str, gain: float, falsifier: str) -> None:
    # 1e-6: the threshold itself is a matter of round-off.
    above = judge(compare(results({**GAINS, arm: gain + 1e-6})))
    below = judge(compare(results({**GAINS, arm: gain - 0.1 if falsifier != "F2" else 4.9})))
    assert fired(above) == [falsifier]
    assert fired(below) == []


def test_thresholds_come_from_shared_seeds() -> None:
    """Stopped in between: the arm has six seeds on which PostDeg gained 2 %, PostDeg's later seeds gained 10 %."""
    runs = []
    for result in results(GAINS):
        config = result.config
        if config.arm == "graphwise" and config.seed >= 6:
            continue
        if config.arm == "postdeg" and config.seed < 6:
            sign = -1 if config.task == "dismantling" else 1
            result = made_up_result(config, (0.4 + 0.001 * config.seed) * (1 + sign * 0.02))
        runs.append(result)
    judged = [j for j in judge(compare(runs)) if j.arm == "graphwise"]
    assert [j.threshold for j in judged] == pytest.approx([1.0] * 3)


def test_a_flipped_sign_on_a_blind_backbone_fires() -> None:
    runs = results(GAINS) + results({"postdeg": -0.2}, backbone="sage")
    assert fired(judge(compare(runs))) == ["F4"]
    shown = results(GAINS) + results({"postdeg": -0.2}, backbone="gin")
    assert fired(judge(compare(shown))) == []


def test_without_a_gain_there_is_nothing_to_explain() -> None:
    found = verdicts(results({**GAINS, "postdeg": -3.0}))
    assert found["F1", "graphwise", "influence"] == "no gain to explain"
    assert found["F4", "gat", "influence"] == "fires"


def test_few_seeds_are_not_testable() -> None:
    found = verdicts(results(GAINS, seeds=5))
    assert set(found.values()) == {"not testable", "not run"}


def test_files_are_complete(tmp_path: Path) -> None:
    runs = results(GAINS)
    planned = [*(run.config for run in runs), replace(TINY, arm="pre")]
    report = build_report(runs, REFERENCES, planned)
    broken = BrokenLine(Path("runs.jsonl"), 3, "cut <off>")
    names = {path.name for path in write_report(report, tmp_path, [broken])}
    assert names == {"summary.csv", "summary.json", "table.md", "gains.png", "curves.png", "report.html"}
    with (tmp_path / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * len(GAINS)
    assert float(rows[0]["gain_mean"]) == pytest.approx(10)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["done"] == len(runs)
    assert len(summary["missing"]) == 1
    for name in ("gains.png", "curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    html = (tmp_path / "report.html").read_text()
    # Self-contained: no other file, no network.
    assert not re.search(r"""(src|href)\s*=\s*['"](?!data:)""", html)
    assert "cut &lt;off&gt;" in html
    assert "1 runs are missing" in html
    assert "+10.0 [" in (tmp_path / "table.md").read_text()
    again = tmp_path / "again"
    write_report(report, again, [broken])
    assert all((again / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_a_report_of_nothing(tmp_path: Path) -> None:
    report = build_report([], [], tiny_plan().configs())
    write_report(report, tmp_path)
    assert "0 of 12 planned runs" in (tmp_path / "report.html").read_text()


def test_reports_do_not_depend_on_the_order_of_the_runs() -> None:
    configs: list[RunConfig] = tiny_plan(seeds=7).configs()
    runs = [instant_worker(config, None) for config in configs]
    assert compare(runs) == compare(runs[::-1])
