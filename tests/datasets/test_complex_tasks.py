"""Generators for complex domains: repeatable, of the stated shape and statistics, and refusing bad arguments."""

import math

import pytest
import torch

from manifoldnorm.datasets.clutter import EASY, NEAR_BOUNDARY, ClutterSettings, clutter, site_shift
from manifoldnorm.datasets.node_labels import digits_graph, hierarchy_graph
from manifoldnorm.datasets.skeleton import skeleton_actions
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall


def test_clutter_repeats_and_has_points_as_features() -> None:
    train, test = clutter(EASY, 3, 4, seed=1)
    again, _ = clutter(EASY, 3, 4, seed=1)
    assert torch.equal(train.signals, again.signals)
    assert not torch.equal(train.signals, clutter(EASY, 3, 4, seed=2)[0].signals)
    assert test.signals.shape == (20, 32, 2)
    assert torch.equal(test.labels, torch.arange(5).repeat_interleave(4))
    power, reflection = train.features(3)
    assert HPD().check_point_on_manifold(power)
    assert MatrixBall().check_point_on_manifold(reflection)
    torch.testing.assert_close(power.diagonal(dim1=-2, dim2=-1).real.mean(-1), torch.ones(15, dtype=torch.float64))


def test_clutter_settings_do_what_they_say() -> None:
    """Near the boundary is nearer; heavier texture spreads the power; thermal noise is the floor."""

    def middle(settings: ClutterSettings) -> float:
        features = torch.cat([clutter(settings, 20, 1, seed=s)[0].features(3).reflection for s in range(3)])
        return float(torch.linalg.svdvals(features)[..., 0].mean())

    assert middle(NEAR_BOUNDARY) > middle(EASY) + 0.05

    def spread(shape: float) -> float:
        cells, _ = clutter(ClutterSettings(texture_shape=shape, separation=0.0, within=0.0), 60, 1, seed=0)
        return float(cells.signals.abs().square().mean((1, 2)).log().std())

    assert spread(0.5) > 1.5 * spread(5.0)
    quiet, _ = clutter(ClutterSettings(clutter_to_noise=-60.0), 40, 1, seed=0)
    assert float(quiet.signals.abs().square().mean()) == pytest.approx(1.0, rel=0.05)


def test_site_shift_is_an_isometry_of_each_order() -> None:
    reflection = clutter(EASY, 5, 1, seed=0)[0].features(3).reflection
    moved = site_shift(reflection, 1.0, generator=torch.Generator().manual_seed(0))
    ball = MatrixBall()
    distances = [ball.dist(x[:, None], x[None]) for x in (reflection, moved)]
    torch.testing.assert_close(distances[0], distances[1], rtol=1e-9, atol=1e-9)
    assert float(ball.dist(reflection, moved).mean()) > 0.5
    unmoved = site_shift(reflection, 0.0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(unmoved, reflection)


def test_skeleton_actions() -> None:
    data = skeleton_actions(2, classes=3, subjects=2, frames=40, seed=5)
    assert data.signals.shape == (12, 40, 4)
    assert torch.equal(data.signals, skeleton_actions(2, classes=3, subjects=2, frames=40, seed=5).signals)
    assert torch.bincount(data.labels).tolist() == [4, 4, 4]
    assert torch.bincount(data.subjects).tolist() == [6, 6]
    assert float(data.signals.mean(1).abs().max()) < 0.1
    part = data.select(data.subjects == 1)
    assert len(part.labels) == 6
    with pytest.raises(ValueError, match="must be positive"):
        skeleton_actions(0, seed=0)


def test_digits_graph() -> None:
    pytest.importorskip("sklearn")
    graph = digits_graph(neighbors=5)
    assert graph.features.shape == (1797, 64)
    source, target = graph.edge_index
    assert int(torch.bincount(target).min()) >= 5
    reverse = {*zip(target.tolist(), source.tolist())}
    assert reverse == {*zip(source.tolist(), target.tolist())}
    same = (graph.labels[source] == graph.labels[target]).double().mean()
    assert float(same) > 0.9
    train, test = graph.split(5, seed=0)
    assert torch.bincount(graph.labels[train]).tolist() == [5] * 10
    assert not bool((train & test).any())


def test_hierarchy_graph() -> None:
    graph = hierarchy_graph(branching=2, depth=5, classes=4, seed=0)
    assert len(graph.labels) == 63
    source, target = graph.edge_index
    assert graph.edge_index.shape == (2, 2 * 62)
    deep = (source > 6) & (target > 6)
    assert torch.equal(graph.labels[source[deep]], graph.labels[target[deep]])
    assert sorted(graph.labels[3:7].tolist()) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="classes must be one of"):
        hierarchy_graph(branching=3, classes=4, seed=0)
    assert math.isfinite(float(graph.features.sum()))


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="train and test must be positive"):
        clutter(EASY, 0, 1, seed=0)
