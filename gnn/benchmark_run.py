"""One run of the benchmark: train, score the test graphs, measure."""

import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.stats
import torch

from manifoldnorm.gnn.benchmark_data import GraphBatch, Instance, test_set
from manifoldnorm.gnn.benchmark_metrics import TaskMetric, task_metric
from manifoldnorm.gnn.benchmark_plan import RunConfig
from manifoldnorm.gnn.benchmark_store import RunResult
from manifoldnorm.gnn.benchmark_training import graph_scales, score_batch, train
from manifoldnorm.gnn.policy import NodePolicy
from manifoldnorm.gnn.tasks import dismantling

PACKAGES = ("torch", "torch-geometric", "networkx", "numpy", "scipy")
CURVE_POINTS = 101
_SETS = {"same_size": 41, "larger": 43}

FloatArray = npt.NDArray[np.float64]


def run_one(config: RunConfig, policies: Path | None = None) -> RunResult:
    """Do one run on one thread.

    Parameters
    ----------
    config : RunConfig
    policies : Path, optional
        Folder to save the trained policy in, as ``<hash>.pt``.

    Raises
    ------
    FloatingPointError
        If the training diverges.
    """
    torch.set_num_threads(1)
    start = time.process_time()
    policy = train(config)
    trained = time.process_time()
    if policies is not None:
        from manifoldnorm.gnn.benchmark_pick import save_policy

        save_policy(policy, config, policies / f"{config.hash}.pt")

    metric = task_metric(config.task, config.worlds)
    same_size = test_set("same_size", config.test_graphs)
    scores = score_test_set(policy, config, "same_size", same_size)
    per_graph = _measure(metric, same_size, scores)
    larger = test_set("larger", config.test_graphs_large)
    per_graph_large = _measure(metric, larger, score_test_set(policy, config, "larger", larger))
    return RunResult(
        config=config,
        metric=float(np.mean(per_graph)),
        metric_large=float(np.mean(per_graph_large)),
        per_graph=tuple(per_graph),
        per_graph_large=tuple(per_graph_large),
        spearman_degree=_degree_correlation(same_size, scores[0]),
        parameters=sum(p.numel() for p in policy.parameters()),
        train_seconds=round(trained - start, 3),
        evaluate_seconds=round(time.process_time() - trained, 3),
        curve=_mean_curve(same_size, scores[0]) if config.task == "dismantling" else (),
        versions=package_versions(),
    )


@torch.inference_mode()
def score_test_set(
    policy: NodePolicy, config: RunConfig, name: str, instances: tuple[Instance, ...]
) -> list[list[FloatArray]]:
    """Score all graphs of a test set, once for each draw of random features; [draw][graph] of shape (n,).

    The features of a draw depend on the training seed, the graph and the draw alone, so that arms are paired.
    """
    scales = graph_scales(config, instances, stream=_SETS[name])
    draws = 1 if config.features == "constant" else config.feature_draws
    scores = []
    for draw in range(draws):
        features = [
            instance.features(
                config.features,
                np.random.default_rng([config.seed, _SETS[name], instance.index, draw]),
            )
            for instance in instances
        ]
        batch = GraphBatch.join(list(instances), features, scales)
        flat = score_batch(policy, batch).to(torch.float64)
        scores.append([part.numpy() for part in torch.split(flat, batch.sizes.tolist())])
    return scores


def order_of(scores: FloatArray) -> npt.NDArray[np.int64]:
    """Order the nodes by score, highest first, ties by smallest index (the numbering of the nodes is random)."""
    return np.argsort(-scores, kind="stable")


def _measure(metric: TaskMetric, instances: tuple[Instance, ...], scores: list[list[FloatArray]]) -> list[float]:
    values = [
        [metric.of_order(instance, order_of(own)) for instance, own in zip(instances, draw, strict=True)]
        for draw in scores
    ]
    return [float(value) for value in np.mean(values, axis=0)]


def _degree_correlation(instances: tuple[Instance, ...], scores: list[FloatArray]) -> float:
    correlations = []
    for instance, own in zip(instances, scores, strict=True):
        ranks = scipy.stats.rankdata([own, instance.graph.degree], axis=1)
        ranks = ranks - ranks.mean(axis=1, keepdims=True)
        length = np.sqrt((ranks**2).sum(axis=1).prod())
        # A constant score has no rank correlation with anything.
        correlations.append(float(ranks[0] @ ranks[1] / length) if length > 0 else 0.0)
    return float(np.mean(correlations))


def _mean_curve(instances: tuple[Instance, ...], scores: list[FloatArray]) -> tuple[float, ...]:
    return mean_curve(instances, [order_of(own) for own in scores])


def mean_curve(instances: tuple[Instance, ...], orders: list[npt.NDArray[np.int64]]) -> tuple[float, ...]:
    """Average the dismantling curves of several graphs over the share of nodes removed, at 101 points."""
    grid = np.linspace(0, 1, CURVE_POINTS)
    curves = []
    for instance, order in zip(instances, orders, strict=True):
        sizes = dismantling.curve(instance.graph, order).largest_component
        n = instance.graph.num_nodes
        curves.append(np.interp(grid, np.arange(n + 1) / n, sizes / n))
    return tuple(round(float(value), 6) for value in np.mean(curves, axis=0))


def package_versions() -> dict[str, str]:
    """List the versions of the packages that decide the numbers."""
    versions = {}
    for package in (*PACKAGES, "manifoldnorm"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions
