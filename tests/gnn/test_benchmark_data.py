"""Graphs, features, metrics and references of the benchmark: seeded, paired, and in the order they must be in."""

from pathlib import Path

import numpy as np
import pytest
import torch

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_data import (
    EXTRA_CHANNELS,
    GraphBatch,
    Instance,
    feature_channels,
    training_set,
)
from manifoldnorm.gnn.benchmark_data import (
    test_set as benchmark_test_set,
)
from manifoldnorm.gnn.benchmark_metrics import seed_budget, task_metric
from manifoldnorm.gnn.benchmark_references import stored_references
from manifoldnorm.gnn.benchmark_training import graph_scales
from manifoldnorm.gnn.graphs import Graph
from tests.gnn.tiny_runs import TINY


def test_sets_are_seeded_and_differ() -> None:
    again = training_set.__wrapped__(3, 4)
    assert all(np.array_equal(a.graph.edges, b.graph.edges) for a, b in zip(training_set(3, 4), again, strict=True))
    assert not np.array_equal(training_set(3, 4)[0].graph.edges, training_set(4, 4)[0].graph.edges)
    # A smaller test set is the beginning of a larger one.
    small, large = benchmark_test_set("same_size", 2), benchmark_test_set("same_size", 3)
    assert all(np.array_equal(a.graph.edges, b.graph.edges) for a, b in zip(small, large))
    assert all(60 <= instance.graph.num_nodes <= 100 for instance in large)
    assert all(200 <= instance.graph.num_nodes <= 300 for instance in benchmark_test_set("larger", 2))


def test_node_numbers_do_not_tell_the_degree() -> None:
    """Ties go by index, and generators number hubs first."""
    correlations = []
    for instance in training_set(0, 40):
        degree = instance.graph.degree
        correlations.append(np.corrcoef(np.arange(degree.size), degree)[0, 1])
    assert abs(np.mean(correlations)) < 0.08


@pytest.mark.parametrize("track", list(EXTRA_CHANNELS))
def test_feature_tracks(track: str) -> None:
    instance = training_set(0, 4)[0]
    features = instance.features(track, np.random.default_rng(1))
    assert features.shape == (instance.graph.num_nodes, feature_channels(track))
    if track != "constant":
        blind = instance.features("blind", np.random.default_rng(1))
        assert torch.equal(features[:, :8], blind)
    if track in ("degree", "structure"):
        assert torch.equal(features[:, 8].expm1().round().long(), torch.from_numpy(instance.graph.degree))


def test_clustering_and_core_of_a_triangle_with_a_tail_and_a_loner() -> None:
    instance = Instance(Graph.from_edges(5, [(0, 1), (1, 2), (0, 2), (2, 3)]), 0)
    assert instance.structure[:, 1].tolist() == pytest.approx([1, 1, 1 / 3, 0, 0])
    assert instance.structure[:, 2].expm1().tolist() == pytest.approx([2, 2, 2, 1, 0])


def test_a_batch_keeps_graphs_apart() -> None:
    instances = list(training_set(0, 4)[:2])
    features = [instance.features("constant", np.random.default_rng(0)) for instance in instances]
    batch = GraphBatch.join(instances, features, None)
    n = instances[0].graph.num_nodes
    assert batch.sizes.tolist() == [instance.graph.num_nodes for instance in instances]
    assert ((batch.edge_index < n).all(0) | (batch.edge_index >= n).all(0)).all()
    assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])


def test_scales_of_the_arms_are_positive_seeded_and_what_they_say() -> None:
    from dataclasses import replace

    instances = training_set(0, 4)
    plain = graph_scales(replace(TINY, arm="postdeg"), instances, 1)
    assert plain is not None
    for name, arm in ARMS.items():
        scales, again = (graph_scales(replace(TINY, arm=name), instances, 1) for _ in range(2))
        if arm.scale is None:
            assert scales is None
            continue
        assert scales is not None
        assert again is not None
        for scale, repeated, degree_scale in zip(scales, again, plain, strict=True):
            assert torch.equal(scale, repeated)
            assert (scale > 0).all()
            if name == "permuted":
                assert torch.equal(scale.sort(0).values, degree_scale.sort(0).values)
                assert not torch.equal(scale, degree_scale)
            if name == "graphwise":
                torch.testing.assert_close(scale, degree_scale.mean().expand_as(scale))
            if name == "random":
                assert degree_scale.min() * (1 - 1e-6) <= scale.min()
                assert scale.max() <= degree_scale.max() * (1 + 1e-6)


def test_metrics_on_a_star() -> None:
    star = Instance(Graph.from_edges(5, [(0, 1), (0, 2), (0, 3), (0, 4)]), 0)
    hub_first, hub_last = np.array([0, 1, 2, 3, 4]), np.array([1, 2, 3, 4, 0])
    independent = task_metric("independent_set", 0)
    assert (independent.of_order(star, hub_first), independent.of_order(star, hub_last)) == (0.2, 0.8)
    dismantling = task_metric("dismantling", 0)
    assert dismantling.of_order(star, hub_first) == pytest.approx(4 / 25)
    assert dismantling.of_order(star, hub_last) == pytest.approx((4 + 3 + 2 + 1) / 25)
    influence = task_metric("influence", 20_000)
    # One seed (5 % rounded up): the hub reaches 1 + 4 p, a leaf 1 + p + 3 p^2.
    assert seed_budget(5) == 1
    assert influence.of_order(star, hub_first) == pytest.approx((1 + 0.4) / 5, abs=0.005)
    assert influence.of_order(star, hub_last) == pytest.approx((1 + 0.1 + 0.03) / 5, abs=0.005)


def test_references_are_in_order_and_stored(tmp_path: Path) -> None:
    references = stored_references(tmp_path, TINY)
    value = {(r.task, r.name): r.value for r in references if r.test_set == "same_size"}
    sets = [
        value["independent_set", name] for name in ("random order", "minimum-degree greedy", "local search", "exact")
    ]
    assert sets == sorted(sets)
    assert sets[0] < sets[-1]
    assert value["influence", "random order"] < value["influence", "lazy greedy"]
    assert value["dismantling", "collective influence"] < value["dismantling", "random order"]
    proved = [r.proved for r in references if r.name == "exact"]
    assert proved == [1.0, 1.0]
    before = (tmp_path / "references.json").stat().st_mtime_ns
    assert stored_references(tmp_path, TINY) == references
    assert (tmp_path / "references.json").stat().st_mtime_ns == before
