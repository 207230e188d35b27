"""The EMG recordings: counts, windows that hold one gesture, and errors."""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("geomstats", reason="carries the EMG recordings")

from manifoldnorm import SPDAffineInvariant
from manifoldnorm.datasets.emg import emg
from manifoldnorm.datasets.package_files import package_file


def test_windows_and_labels() -> None:
    data = emg()
    assert data.recordings == ("mg_s1", "mg_s2", "rr_s1", "rr_s2")
    assert data.people == ("mg", "rr")
    assert len(data.gestures) == 5
    assert data.signals.shape == (3600, 200, 8)
    assert torch.bincount(data.recording).tolist() == [900] * 4
    assert data.person.tolist() == [data.people.index(data.recordings[r][:2]) for r in data.recording.tolist()]
    part = data.select(data.in_recordings("rr_s2"))
    assert set(part.recording.tolist()) == {3}
    assert set(part.gesture.tolist()) == set(range(5))


def test_matrices_are_positive_definite_and_correlations_have_a_unit_diagonal() -> None:
    data = emg(length=1000)
    matrices = data.covariances()
    assert SPDAffineInvariant().check_point_on_manifold(matrices)
    torch.testing.assert_close(matrices[3], data.covariances(shrinkage=0.0)[3], rtol=1e-2, atol=0.1)
    correlations = data.correlations()
    assert torch.equal(correlations.diagonal(dim1=-2, dim2=-1), torch.ones(len(data), 8, dtype=torch.float64))
    assert SPDAffineInvariant().check_point_on_manifold(correlations)


def test_overlapping_windows_and_bad_arguments() -> None:
    assert len(emg(length=400, stride=200)) > 1.8 * len(emg(length=400))
    with pytest.raises(ValueError, match="length"):
        emg(length=1)
    with pytest.raises(ValueError, match="no gesture lasts"):
        emg(length=10**6)
    with pytest.raises(ValueError, match="unknown recordings"):
        emg(length=2000).in_recordings("xx_s1")


def test_missing_package_and_missing_file_say_what_to_do() -> None:
    with pytest.raises(ModuleNotFoundError, match=r'pip install "manifoldnorm\[data\]"'):
        package_file("no_such_package", "file.csv", extra="data")
    with pytest.raises(FileNotFoundError, match=r"no_such\.csv"):
        package_file("geomstats", "datasets", "no_such.csv", extra="data")


def test_geomstats_is_not_imported() -> None:
    """Its import sets torch's default dtype for the whole process, with the torch backend."""
    code = "import sys; from manifoldnorm.datasets.emg import emg; emg(); assert 'geomstats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
