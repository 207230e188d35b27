"""Connectomes, and the generators of rotation sequences and radar-like covariances."""

import importlib.util

import pytest
import torch

from manifoldnorm.datasets.connectomes import connectomes
from manifoldnorm.datasets.radar_like import radar_like
from manifoldnorm.datasets.rotations import skeleton_like
from manifoldnorm.manifolds import CorrelationOffLog, SPDLogEuclidean
from manifoldnorm.manifolds.rotations import Rotations


def test_connectomes_are_correlation_matrices() -> None:
    data = connectomes()
    assert data.matrices.shape == (86, 28, 28)
    assert CorrelationOffLog().check_point_on_manifold(data.matrices)
    assert len(data) == len(set(data.person.tolist())) == 86
    assert set(data.patient.tolist()) == {0, 1}
    # The first row of the file.
    assert float(data.matrices[0, 0, 1]) == pytest.approx(float(data.matrices[0, 1, 0]))
    assert float(data.matrices.abs().flatten(1).sort(1).values[:, -29].max()) > 0.9


def test_connectomes_without_geomstats_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifoldnorm.datasets.package_files.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "manifoldnorm\[data\]"'):
        connectomes()
    assert importlib.util.find_spec("torch") is not None


def test_skeleton_like_sequences() -> None:
    data = skeleton_like(3, classes=2, subjects=3, joints=4, frames=5, seed=1)
    assert data.rotations.shape == (18, 5, 4, 3, 3)
    assert Rotations().check_point_on_manifold(data.rotations)
    assert torch.equal(data.rotations, skeleton_like(3, classes=2, subjects=3, joints=4, frames=5, seed=1).rotations)
    assert torch.bincount(data.labels).tolist() == [9, 9]
    assert torch.bincount(data.subjects).tolist() == [6, 6, 6]
    assert len(data.select(data.subjects == 2)) == 6
    with pytest.raises(ValueError, match="positive"):
        skeleton_like(0, seed=0)


def test_subjects_differ_by_a_left_translation() -> None:
    """Without noise or jitter between subjects, the relative motion from frame to frame does not see the mounting."""
    moved = skeleton_like(200, classes=1, subjects=2, joints=1, frames=4, noise=0.0, shift=1.0, seed=0)
    r = moved.rotations[:, :, 0]
    steps = torch.linalg.matrix_norm(r[:, 0].mT @ r[:, 2] - torch.eye(3, dtype=torch.float64))
    first, second = steps[moved.subjects == 0].mean(), steps[moved.subjects == 1].mean()
    assert float((first - second).abs()) < 0.05 * float(first)
    means = [Rotations().mean(r[moved.subjects == s].flatten(0, 1)) for s in (0, 1)]
    assert float(Rotations().dist(*means)) > 0.5


def test_radar_like_covariances() -> None:
    data = radar_like(4, sites=2, size=8, seed=3)
    assert data.covariances.shape == (24, 8, 8)
    assert SPDLogEuclidean().check_point_on_manifold(data.covariances)
    assert torch.equal(data.covariances, radar_like(4, sites=2, size=8, seed=3).covariances)
    assert torch.bincount(data.labels).tolist() == [8, 8, 8]
    assert len(data.select(data.sites == 1)) == 12
    with pytest.raises(ValueError, match="2 size"):
        radar_like(1, size=20, length=30, seed=0)
