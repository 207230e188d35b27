"""Hand gestures in surface EMG: real recordings that ship with geomstats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from manifoldnorm.datasets.package_files import package_file

ELECTRODES = 8


@dataclass(frozen=True)
class EMG:
    """Windows of electromyographic recordings with what they are of.

    Attributes
    ----------
    signals : Tensor
        Shape (windows, length, 8), float32, raw sensor units.
    gesture, recording, person : Tensor
        Shape (windows,), int64, indices into `gestures`, `recordings`, `people`.
    gestures, recordings, people : tuple of str
        The names. A recording is one session of one person.
    """

    signals: Tensor
    gesture: Tensor
    recording: Tensor
    person: Tensor
    gestures: tuple[str, ...]
    recordings: tuple[str, ...]
    people: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.signals)

    def covariances(self, *, shrinkage: float = 1e-3, dtype: torch.dtype = torch.float64) -> Tensor:
        """Compute SPD matrices of shape (windows, 8, 8), see `manifoldnorm.nn.spdnet.covariance`."""
        from manifoldnorm.nn.spdnet import covariance

        return covariance(self.signals.to(dtype), shrinkage=shrinkage)

    def correlations(self, *, shrinkage: float = 1e-3, dtype: torch.dtype = torch.float64) -> Tensor:
        """Compute correlation matrices of shape (windows, 8, 8)."""
        matrices = self.covariances(shrinkage=shrinkage, dtype=dtype)
        scale = torch.diagonal(matrices, dim1=-2, dim2=-1).rsqrt()
        result = scale.unsqueeze(-1) * matrices * scale.unsqueeze(-2)
        result = 0.5 * (result + result.mT)
        result.diagonal(dim1=-2, dim2=-1).fill_(1)
        return result

    def select(self, mask: Tensor) -> EMG:
        """Return the windows where `mask` is True."""
        return EMG(
            self.signals[mask], self.gesture[mask], self.recording[mask], self.person[mask],
            self.gestures, self.recordings, self.people,
        )  # fmt: skip

    def in_recordings(self, *names: str) -> Tensor:
        """Return the mask of the windows of the named recordings."""
        unknown = sorted(set(names) - set(self.recordings))
        if unknown:
            raise ValueError(f"unknown recordings {unknown}; there are {list(self.recordings)}")
        wanted = torch.tensor([self.recordings.index(name) for name in names])
        return torch.isin(self.recording, wanted)


@cache
def _read() -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Read all samples, with the gesture and the recording of each."""
    import numpy as np

    path = package_file("geomstats", "datasets", "data", "emg", "emg.csv", extra="data")
    with path.open() as file:
        header = next(file).strip().split(",")
        expected = ["time", *(f"c{i}" for i in range(ELECTRODES)), "label", "exp"]
        if header != expected:
            raise ValueError(f"{path.name} has columns {header}, expected {expected}; the installed geomstats differs")
        names = [line.rstrip("\n").rsplit(",", 2)[1:] for line in file]
    values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 1 + ELECTRODES), dtype=np.float32)
    return torch.from_numpy(values), tuple(n[0] for n in names), tuple(n[1] for n in names)


def emg(*, length: int = 200, stride: int | None = None) -> EMG:
    """Load the recordings, cut into windows that hold a single gesture.

    Two people, two sessions each, eight forearm electrodes, five hand positions (four gestures and rest), 731,682
    samples. The recordings are named by person and session: mg_s1, mg_s2, rr_s1, rr_s2.

    Parameters
    ----------
    length : int
        Samples of a window.
    stride : int, optional
        Samples between the starts of neighbouring windows; `length` by default, so that they do not overlap.

    Returns
    -------
    EMG
        Windows, in the order of the recordings.

    Raises
    ------
    ModuleNotFoundError
        When geomstats, which carries the file, is not installed; it is not imported.

    Notes
    -----
    The file is part of geomstats (MIT licence), which uses it in its EMG example.

    Examples
    --------
    >>> data = emg(length=200)
    >>> data.covariances().shape[1:]
    torch.Size([8, 8])
    """
    stride = length if stride is None else stride
    if length < 2 or stride < 1:
        raise ValueError(f"length must be at least 2 and stride at least 1, got {length} and {stride}")
    samples, labels, sources = _read()
    gestures, recordings = tuple(sorted(set(labels))), tuple(sorted(set(sources)))
    people = tuple(sorted({name.split("_")[0] for name in recordings}))
    starts: list[int] = []
    begin = 0
    for i in range(1, len(labels) + 1):
        if i == len(labels) or labels[i] != labels[begin] or sources[i] != sources[begin]:
            starts.extend(range(begin, i - length + 1, stride))
            begin = i
    if not starts:
        raise ValueError(f"no gesture lasts {length} samples; use a shorter length")
    index = torch.tensor(starts).unsqueeze(1) + torch.arange(length)
    recording = torch.tensor([recordings.index(sources[s]) for s in starts])
    return EMG(
        signals=samples[index],
        gesture=torch.tensor([gestures.index(labels[s]) for s in starts]),
        recording=recording,
        person=torch.tensor([people.index(recordings[r].split("_")[0]) for r in recording.tolist()]),
        gestures=gestures,
        recordings=recordings,
        people=people,
    )
