"""Simulated echoes of moving targets as covariance matrices, with a different receiver at each site."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RadarLike:
    """Covariance matrices of simulated echoes.

    Attributes
    ----------
    covariances : Tensor
        Shape (echoes, n, n), float64, positive definite.
    labels, sites : Tensor
        Shape (echoes,), int64.
    """

    covariances: Tensor
    labels: Tensor
    sites: Tensor

    def __len__(self) -> int:
        return len(self.covariances)

    def select(self, mask: Tensor) -> RadarLike:
        """Return the echoes where `mask` is True."""
        return RadarLike(self.covariances[mask], self.labels[mask], self.sites[mask])


def radar_like(
    echoes: int, *, sites: int = 4, size: int = 20, length: int = 200, shift: float = 0.5, seed: int
) -> RadarLike:
    """Draw echoes of three kinds of targets at each site.

    An echo is a complex signal: a Doppler tone whose frequency is modulated at a rate that depends on the class, in
    autoregressive clutter. Windows of `size` samples, half overlapping, give the real part of a Hermitian covariance
    matrix, plus 1e-4 of the identity. A site has a receiver of its own: its covariances are A C A^T with the site's
    matrix A, a random symmetric exponential.

    Parameters
    ----------
    echoes : int
        Echoes of each class at each site.
    sites : int
        Number of sites.
    size, length : int
        Samples of a window and of an echo.
    shift : float
        Standard deviation of the entries of the logarithm of A, divided by the square root of `size`.
    seed : int
        Of everything.

    Notes
    -----
    A stand-in for the radar data of the SPD network literature, which are not freely available; figures on it compare
    with each other only.

    Examples
    --------
    >>> radar_like(2, sites=2, size=8, seed=0).covariances.shape
    torch.Size([12, 8, 8])
    """
    if min(echoes, sites) < 1 or size < 2 or length < 2 * size:
        raise ValueError(
            f"need echoes, sites >= 1, size >= 2 and length >= 2 size, got {(echoes, sites, size, length)}"
        )
    generator = torch.Generator().manual_seed(seed)
    classes = 3
    label = torch.arange(classes).repeat_interleave(echoes).repeat(sites)
    site = torch.arange(sites).repeat_interleave(classes * echoes)
    signal = _echo(label, length, generator)
    windows = signal.unfold(1, size, size // 2)
    windows = windows - windows.mean(1, keepdim=True)
    covariance = (windows.mT @ windows.conj()).real / (windows.shape[1] - 1)
    covariance = covariance + 1e-4 * torch.eye(size, dtype=torch.float64)
    noise = torch.randn(sites, size, size, generator=generator, dtype=torch.float64)
    receiver = torch.linalg.matrix_exp(shift / math.sqrt(size) * (noise + noise.mT) / math.sqrt(2))
    moved = receiver[site] @ covariance @ receiver[site].mT
    return RadarLike(0.5 * (moved + moved.mT), label, site)


def _echo(label: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Return complex echoes of shape (len(label), length)."""
    count = len(label)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    time = torch.arange(length, dtype=torch.float64)
    # Cycles per sample: the carrier is anywhere, the class sets how fast and how far it swings.
    rate = torch.tensor([0.01, 0.025, 0.05], dtype=torch.float64)[label] * torch.exp(0.15 * normal(count))
    depth = torch.tensor([0.09, 0.05, 0.02], dtype=torch.float64)[label] * torch.exp(0.15 * normal(count))
    carrier = 0.12 + 0.03 * normal(count)
    swing = depth[:, None] * torch.sin(2 * math.pi * (rate[:, None] * time + uniform(count, 1)))
    phase = 2 * math.pi * (torch.cumsum(carrier[:, None] + swing, dim=1) + uniform(count, 1))
    tone = torch.polar(torch.exp(0.3 * normal(count, 1)).expand(count, length).contiguous(), phase)
    clutter = torch.zeros(count, length, dtype=torch.complex128)
    excitation = torch.complex(normal(count, length), normal(count, length)) / math.sqrt(2)
    # A narrow second-order resonance at zero Doppler.
    for t in range(length):
        previous = clutter[:, t - 1] if t else torch.zeros_like(clutter[:, 0])
        before = clutter[:, t - 2] if t > 1 else torch.zeros_like(clutter[:, 0])
        clutter[:, t] = 1.2 * previous - 0.45 * before + 0.3 * excitation[:, t]
    return tone + clutter
