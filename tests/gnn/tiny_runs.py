"""Runs of the benchmark small enough for a test."""

from dataclasses import replace
from pathlib import Path

from manifoldnorm.gnn.benchmark_plan import Group, Plan, RunConfig
from manifoldnorm.gnn.benchmark_run import run_one
from manifoldnorm.gnn.benchmark_store import RunResult

TINY = RunConfig(
    task="independent_set",
    arm="layernorm",
    steps=2,
    train_graphs=4,
    batch_graphs=2,
    test_graphs=3,
    test_graphs_large=1,
    feature_draws=1,
    worlds=50,
)


def tiny_plan(*, arms: tuple[str, ...] = ("layernorm", "postdeg"), seeds: int = 2) -> Plan:
    """Plan a handful of runs."""
    return Plan((Group(arms),), TINY, tuple(range(seeds)))


def made_up_result(config: RunConfig, metric: float) -> RunResult:
    """Make a complete result up, with the same metric on every graph."""
    return RunResult(
        config=config,
        metric=metric,
        metric_large=metric,
        per_graph=(metric,) * config.test_graphs,
        per_graph_large=(metric,) * config.test_graphs_large,
        spearman_degree=0.0,
        parameters=1,
        train_seconds=0.0,
        evaluate_seconds=0.0,
        curve=(1.0, metric, 0.0) if config.task == "dismantling" else (),
        versions={},
    )


def instant_worker(config: RunConfig, policies: Path | None) -> RunResult:
    """Stand for a run that takes no time."""
    return made_up_result(config, 0.4 + 0.001 * config.seed + 0.01 * (config.arm == "postdeg"))


def failing_worker(config: RunConfig, policies: Path | None) -> RunResult:
    """Fail on seed 1."""
    if config.seed == 1:
        raise FloatingPointError("the training diverged")
    return instant_worker(config, policies)


def dying_worker(config: RunConfig, policies: Path | None) -> RunResult:
    """Kill the process on one configuration, as the kernel does when memory runs out."""
    if config.seed == 1 and config.task == "influence" and config.arm == "postdeg":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    return instant_worker(config, policies)


def interrupted_worker(config: RunConfig, policies: Path | None) -> RunResult:
    """Send this process an interrupt on seed 1, as Ctrl-C does."""
    if config.seed == 1:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGINT)
    return instant_worker(config, policies)


def without_times(result: RunResult) -> RunResult:
    """Drop what differs between two equal runs."""
    return replace(result, train_seconds=0.0, evaluate_seconds=0.0)


def run_twice(config: RunConfig) -> tuple[RunResult, RunResult]:
    """Do a run twice."""
    return without_times(run_one(config)), without_times(run_one(config))
