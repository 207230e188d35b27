"""Gesture recognition across recording sessions, with and without batch norm.

Train on the first sessions of two people, test on their second sessions. Electrodes have been put on anew in between,
which moves all covariance matrices of a recording together; a running state per recording, taken from its unlabelled
windows, undoes that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from manifoldnorm.datasets.emg import EMG
from manifoldnorm.manifolds import Manifold
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm
from manifoldnorm.nn.spdnet import SPDNet

TRAIN = ("mg_s1", "rr_s1")
TEST = ("mg_s2", "rr_s2")
NORMS = ("none", "shared", "per recording")


@dataclass(frozen=True)
class CrossSession:
    """The matrices, gestures and recordings that are trained on, and those that are tested on.

    Attributes
    ----------
    train, test : tuple of (Tensor, Tensor, list of str)
        Matrices (N, n, n), gestures (N,), and the recording of each.
    classes : int
        The number of gestures.
    """

    train: tuple[Tensor, Tensor, list[str]]
    test: tuple[Tensor, Tensor, list[str]]
    classes: int

    @classmethod
    def of(cls, data: EMG, matrices: Tensor) -> CrossSession:
        """Split windows, given as matrices, into first and second sessions."""

        def part(names: tuple[str, ...]) -> tuple[Tensor, Tensor, list[str]]:
            mask = data.in_recordings(*names)
            return matrices[mask], data.gesture[mask], [data.recordings[i] for i in data.recording[mask].tolist()]

        return cls(part(TRAIN), part(TEST), len(data.gestures))


def build(manifold: Manifold, norm: str, data: CrossSession, generator: torch.Generator) -> SPDNet:
    """Build a network of one BiMap block with the batch norm that `norm` names, one of `NORMS`."""
    n = data.train[0].shape[-1]

    def shared(size: int) -> LieBatchNorm:
        return LieBatchNorm(manifold, (size, size), dtype=torch.float64)

    def per_recording(size: int) -> DomainBatchNorm:
        return DomainBatchNorm(manifold, (size, size), domains=TRAIN + TEST, dtype=torch.float64)

    makers = {"none": None, "shared": shared, "per recording": per_recording}
    if norm not in makers:
        raise ValueError(f"norm must be one of {NORMS}, got {norm!r}")
    return SPDNet((n, n), data.classes, norm=makers[norm], generator=generator, dtype=torch.float64)


def train(net: SPDNet, data: CrossSession, *, epochs: int, batch: int, lr: float, generator: torch.Generator) -> None:
    """Train with Adam on shuffled batches."""
    x, y, recordings = data.train
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=1e-4)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(batch):
            if len(rows) < batch:
                continue
            optimizer.zero_grad()
            scores = net(x[rows], [recordings[i] for i in rows.tolist()])
            F.cross_entropy(scores, y[rows]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(net: SPDNet, data: CrossSession) -> float:
    """Fraction of test windows recognised, after refitting per-recording statistics on unlabelled test windows."""
    x, y, recordings = data.test
    if any(isinstance(layer, DomainBatchNorm) for layer in net.layers):
        for name in TEST:
            net.refit(x[[i for i, r in enumerate(recordings) if r == name]], name)
    net.eval()
    return float((net(x, recordings).argmax(-1) == y).double().mean())


def cross_session_accuracy(
    manifold: Manifold, norm: str, data: CrossSession, *, seed: int, epochs: int = 30, batch: int = 60, lr: float = 1e-2
) -> float:
    """Train and test one network; the same seed gives all norms the same initial weights and batches.

    Parameters
    ----------
    manifold : Manifold
        The geometry of the batch norm.
    norm : str
        One of `NORMS`.
    data : CrossSession
        Matrices that `manifold` accepts.
    seed, epochs, batch, lr
        Of the training.
    """
    net_generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = build(manifold, norm, data, net_generator)
    train(net, data, epochs=epochs, batch=batch, lr=lr, generator=torch.Generator().manual_seed(seed))
    return accuracy(net, data)
