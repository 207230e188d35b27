"""Results on disk: a line cut anywhere costs that run alone, and says so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from manifoldnorm.gnn.benchmark_store import (
    ResultFile,
    read_manifest,
    read_results,
    result_files,
    write_manifest,
)
from tests.gnn.tiny_runs import TINY, instant_worker, tiny_plan

RUNS = [instant_worker(replace(TINY, seed=seed), None) for seed in range(4)]


def write(path: Path, lines: list[str]) -> None:
    with ResultFile(path) as file:
        for line in lines:
            file.append(line)


def test_results_come_back_in_a_fixed_order(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", [run.to_line() for run in reversed(RUNS)])
    results, broken = read_results(result_files([tmp_path]))
    assert results == RUNS
    assert not broken


def test_a_line_cut_anywhere_loses_nothing_else(tmp_path: Path) -> None:
    line = RUNS[1].to_line()
    for cut in range(1, len(line) - 1, 7):
        path = tmp_path / f"runs-{cut}.jsonl"
        path.write_text(RUNS[0].to_line() + line[:cut])
        write(path, [RUNS[2].to_line(), RUNS[1].to_line()])
        results, broken = read_results([path])
        assert results == RUNS[:3], cut
        assert [(item.number, item.reason) for item in broken] == [(2, "cut off")], cut


def test_a_cut_before_the_newline_keeps_the_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(RUNS[0].to_line()[:-1])
    write(path, [RUNS[1].to_line()])
    results, broken = read_results([path])
    assert results == RUNS[:2]
    assert not broken


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda values: values.pop("metric"), "incomplete run"),
        (lambda values: values.update(schema=99), "not of schema"),
        (lambda values: values["config"].update(seed=77), "does not match its hash"),
        (lambda values: values["config"].pop("steps"), "fields"),
        (lambda values: values.update(unknown=1), "incomplete run"),
    ],
)
def test_lines_that_are_json_but_no_run_are_named(tmp_path: Path, spoil: object, reason: str) -> None:
    values = json.loads(RUNS[1].to_line())
    spoil(values)  # type: ignore[operator]
    path = tmp_path / "runs.jsonl"
    path.write_text(RUNS[0].to_line() + json.dumps(values) + "\n" + "[1, 2]\n\n" + "\xff\n" + RUNS[2].to_line())
    results, broken = read_results([path])
    assert results == [RUNS[0], RUNS[2]]
    assert [item.number for item in broken] == [2, 3, 5]
    assert reason in broken[0].reason
    assert "runs.jsonl, line 2" in str(broken[0])
    assert "counts as not done" in str(broken[0])


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(RUNS[0].to_line().encode() + b"\xff\xfe\x00\n")
    results, broken = read_results([path])
    assert len(results) == len(broken) == 1


def test_a_run_that_was_done_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "runs-1-of-2.jsonl", [RUNS[0].to_line()])
    write(tmp_path / "runs-2-of-2.jsonl", [RUNS[0].to_line(), RUNS[1].to_line()])
    assert read_results(result_files([tmp_path]))[0] == RUNS[:2]


def test_the_manifest_guards_a_folder(tmp_path: Path) -> None:
    plan = tiny_plan()
    write_manifest(tmp_path, plan, resume=False)
    assert read_manifest(tmp_path) == plan
    write_manifest(tmp_path, plan, resume=True)
    with pytest.raises(FileExistsError, match="--resume"):
        write_manifest(tmp_path, plan, resume=False)
    with pytest.raises(ValueError, match="seeds differ"):
        write_manifest(tmp_path, tiny_plan(seeds=3), resume=True)
    with pytest.raises(FileNotFoundError, match="holds no benchmark"):
        read_manifest(tmp_path / "elsewhere")
