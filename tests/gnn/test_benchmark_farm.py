"""The farm of runs: interrupted, killed, with failing and dying workers, in shards; the report is the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manifoldnorm.gnn.benchmark import run_farm
from manifoldnorm.gnn.benchmark_plan import TASKS, shard
from manifoldnorm.gnn.benchmark_report import Report, build_report
from manifoldnorm.gnn.benchmark_store import read_results, result_files
from tests.gnn.tiny_runs import (
    TINY,
    dying_worker,
    failing_worker,
    instant_worker,
    interrupted_worker,
    run_twice,
    tiny_plan,
)

CONFIGS = tiny_plan(seeds=3).configs()


def report_of(*folders: Path) -> Report:
    return build_report(read_results(result_files(folders))[0], [], CONFIGS)


def test_the_same_seed_gives_the_same_numbers() -> None:
    from dataclasses import replace

    for task in TASKS:
        first, second = run_twice(replace(TINY, task=task, arm="random", objective="reinforce"))
        assert first == second


def test_it_does_what_is_missing_and_no_more(tmp_path: Path) -> None:
    seen = []
    first = run_farm(CONFIGS[:4], tmp_path, worker=instant_worker, on_result=seen.append)
    second = run_farm(CONFIGS, tmp_path, worker=instant_worker, on_result=seen.append)
    assert (first.found, first.done, second.found, second.done) == (0, 4, 4, len(CONFIGS) - 4)
    assert second.complete
    assert len(seen) == len(CONFIGS)
    assert not (tmp_path / "failures.jsonl").read_text()


def test_two_shards_merge_to_the_same_report(tmp_path: Path) -> None:
    run_farm(CONFIGS, tmp_path / "whole", worker=instant_worker)
    for index in (2, 1):
        part = shard(CONFIGS, index, 2)
        run_farm(part, tmp_path / "shared", file_name=f"runs-{index}-of-2.jsonl", worker=instant_worker)
        run_farm(part, tmp_path / f"own{index}", worker=instant_worker)
    whole = report_of(tmp_path / "whole")
    assert report_of(tmp_path / "shared") == whole
    assert report_of(tmp_path / "own1", tmp_path / "own2") == whole
    assert not whole.missing


@pytest.mark.parametrize("jobs", [1, 2])
def test_failures_are_reported_and_stop_no_other_run(tmp_path: Path, jobs: int) -> None:
    summary = run_farm(CONFIGS, tmp_path, jobs=jobs, worker=failing_worker)
    expected = [config for config in CONFIGS if config.seed == 1]
    assert {failure.config for failure in summary.failures} == set(expected)
    assert summary.done == len(CONFIGS) - len(expected)
    assert not summary.complete
    lines = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert {line["config_hash"] for line in lines} == {config.hash for config in expected}
    assert all("the training diverged" in line["error"] and "failing_worker" in line["trace"] for line in lines)
    # The next call tries them again.
    assert run_farm(CONFIGS, tmp_path, worker=instant_worker).complete


@pytest.mark.slow
def test_a_dying_worker_costs_its_run_alone(tmp_path: Path) -> None:
    summary = run_farm(CONFIGS, tmp_path, jobs=2, worker=dying_worker)
    assert summary.lost_workers >= 1
    assert [failure.config for failure in summary.failures if "worker process died" in failure.error]
    assert summary.done >= len(CONFIGS) - 2
    culprit = {c for c in CONFIGS if (c.task, c.arm, c.seed) == ("influence", "postdeg", 1)}
    assert culprit <= {failure.config for failure in summary.failures}


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    # A shell starts its background jobs with interrupts ignored, and the farm leaves that as it is.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        check_interrupt(tmp_path)
    finally:
        signal.signal(signal.SIGINT, previous)


def check_interrupt(tmp_path: Path) -> None:
    summary = run_farm(CONFIGS, tmp_path, worker=interrupted_worker)
    assert summary.interrupted
    results, broken = read_results(result_files([tmp_path]))
    assert len(results) == summary.done == len([c for c in CONFIGS if c.seed == 0])
    assert not broken
    # The handlers are back: a later interrupt is Python's again.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run_farm(CONFIGS, tmp_path, worker=instant_worker)
    run_farm(CONFIGS, tmp_path / "whole", worker=instant_worker)
    assert report_of(tmp_path) == report_of(tmp_path / "whole")


KILLED_RUN = """
import sys, time
from pathlib import Path
from tests.gnn import tiny_runs
from manifoldnorm.gnn import benchmark, benchmark_store

def slow(config, policies):
    time.sleep(0.02)
    return tiny_runs.instant_worker(config, policies)

def cut(self, line):
    # Half a line at a time, so that a kill falls into the middle of one.
    data = line.encode()
    benchmark_store.os.write(self._descriptor, data[: len(data) // 2])
    time.sleep(0.05)
    benchmark_store.os.write(self._descriptor, data[len(data) // 2 :])

benchmark_store.ResultFile.append = cut
benchmark.run_farm(tiny_runs.tiny_plan(seeds=3).configs(), Path(sys.argv[1]), worker=slow)
"""


def test_killed_in_the_middle_of_a_line_and_resumed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", KILLED_RUN, str(tmp_path)], cwd=root)
    path = tmp_path / "runs.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = path.read_bytes() if path.exists() else b""
        if text.count(b"\n") >= 3 and not text.endswith(b"\n"):
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.005)
    assert process.wait() == -signal.SIGKILL
    results, _ = read_results([path])
    assert 3 <= len(results) < len(CONFIGS)
    summary = run_farm(CONFIGS, tmp_path, worker=instant_worker)
    assert summary.found == len(results)
    assert summary.complete
    run_farm(CONFIGS, tmp_path / "whole", worker=instant_worker)
    assert report_of(tmp_path) == report_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_dask_cluster_does_the_same(tmp_path: Path) -> None:
    distributed = pytest.importorskip("dask.distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        summary = run_farm(CONFIGS, tmp_path, dask_scheduler=cluster.scheduler_address, worker=failing_worker)
    assert summary.done == len([config for config in CONFIGS if config.seed != 1])
    assert {failure.config.seed for failure in summary.failures} == {1}


@pytest.mark.slow
def test_policies_differ_where_they_should_and_postdeg_helps_without_degree(tmp_path: Path) -> None:
    """Degree-blind GAT, three seeds: PostDeg beats LayerNorm on the independent set and on dismantling."""
    from manifoldnorm.gnn.benchmark_comparisons import compare
    from manifoldnorm.gnn.benchmark_plan import PRESETS, Group, Plan

    plan = Plan(
        (Group(("layernorm", "postdeg")),), PRESETS["smoke"].settings, (0, 1, 2), ("independent_set", "dismantling")
    )
    run_farm(plan.configs(), tmp_path)
    comparisons = compare(read_results(result_files([tmp_path]))[0])
    assert len(comparisons) == 4
    for comparison in comparisons:
        assert comparison.gain.wins == 3, comparison
        assert comparison.gain.sign_p is None
