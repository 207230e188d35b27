"""Simulated radar clutter: cells of several classes, each an autoregressive signal with texture and thermal noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manifoldnorm.linalg import symmetrize
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall
from manifoldnorm.signal import ReflectionModel, lattice_reflection, simulate_autoregression


@dataclass(frozen=True)
class ClutterSettings:
    """How hard the task is; the defaults are the easy task.

    Attributes
    ----------
    pulses : int
        Samples of a cell's signal.
    separation, within : float
        Standard deviation of the entries that tell classes, and cells of a class, apart (tangent vectors of the ball).
    base : float
        The same for the common centre; large values bring the reflection matrices near the boundary.
    clutter_to_noise : float
        Clutter power over thermal noise power in decibels.
    texture_shape : float
        Shape of the gamma distributed texture that multiplies the power of each cell (1: very heavy-tailed).
    channels, order, classes : int
        Antenna channels, order of the autoregressive model, number of classes.
    """

    pulses: int = 32
    separation: float = 0.35
    within: float = 0.25
    base: float = 0.5
    clutter_to_noise: float = 15.0
    texture_shape: float = 1.0
    channels: int = 2
    order: int = 3
    classes: int = 5


EASY = ClutterSettings()
HARD = ClutterSettings(pulses=24, separation=0.25, within=0.35, clutter_to_noise=10.0)
NEAR_BOUNDARY = ClutterSettings(pulses=48, separation=0.3, within=0.35, base=1.2, clutter_to_noise=25.0)


@dataclass(frozen=True)
class Clutter:
    """Cells of clutter.

    Attributes
    ----------
    signals : Tensor
        Shape (cells, pulses, channels), complex128.
    labels : Tensor
        Shape (cells,), int64.
    """

    signals: Tensor
    labels: Tensor

    def features(self, order: int) -> ReflectionModel:
        """Estimate power, divided by its trace over the channels, and reflection matrices of each cell."""
        power, reflection = lattice_reflection(self.signals, order)
        level = power.diagonal(dim1=-2, dim2=-1).real.mean(-1)
        return ReflectionModel(power / level[:, None, None], reflection)


def clutter(settings: ClutterSettings, train: int, test: int, *, seed: int) -> tuple[Clutter, Clutter]:
    """Draw a training and a test set of cells.

    Class centres are a common centre moved by random isometries of the ball; cells scatter about their class; power
    matrices are log-normal about that of their class.

    Parameters
    ----------
    settings : ClutterSettings
        `EASY`, `HARD`, `NEAR_BOUNDARY` or your own.
    train, test : int
        Cells of each class.
    seed : int
        Of the classes and the cells.

    Examples
    --------
    >>> train, test = clutter(EASY, 4, 6, seed=0)
    >>> train.signals.shape, test.labels.shape
    (torch.Size([20, 32, 2]), torch.Size([30]))
    """
    if train < 1 or test < 1:
        raise ValueError(f"train and test must be positive, got {train} and {test}")
    generator = torch.Generator().manual_seed(seed)
    ball, cone = MatrixBall(), HPD()
    d, order, classes = settings.channels, settings.order, settings.classes

    def noise(*batch: int) -> Tensor:
        return torch.randn(*batch, d, d, generator=generator, dtype=torch.complex128)

    zero, one = torch.zeros(d, d, dtype=torch.complex128), torch.eye(d, dtype=torch.complex128)
    base = ball.expmap(zero, settings.base * noise(order))
    centre = ball.translate(ball.expmap(zero, settings.separation * noise(classes, order)), -base)
    power = cone.expmap(one, symmetrize(settings.separation * noise(classes)))

    def cells(count: int) -> Clutter:
        labels = torch.arange(classes).repeat_interleave(count)
        around = ball.expmap(zero, settings.within * noise(len(labels), order))
        reflection = ball.translate(around, -centre[labels])
        own = cone.uncenter(symmetrize(settings.within * noise(len(labels))), power[labels])
        clean = simulate_autoregression(own, reflection, settings.pulses, generator=generator)
        level = _gamma(len(labels), settings.texture_shape, generator) * 10 ** (settings.clutter_to_noise / 10)
        thermal = torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
        return Clutter(level.sqrt()[:, None, None] * clean + thermal, labels)

    return cells(train), cells(test)


def _gamma(count: int, shape: float, generator: torch.Generator) -> Tensor:
    """Draw gamma variables with mean one."""
    concentration = torch.full((count,), shape, dtype=torch.float64)
    return torch._standard_gamma(concentration, generator=generator) / shape


def site_shift(reflection: Tensor, magnitude: float, *, generator: torch.Generator) -> Tensor:
    """Move all cells of a site by one unknown isometry per order, phi_-S with S = Exp_0(magnitude * noise).

    Parameters
    ----------
    reflection : Tensor
        Shape (cells, order, d, d), in the matrix ball.
    magnitude : float
        Standard deviation of the entries of the tangent vector.
    generator : torch.Generator
        For the isometry.
    """
    ball = MatrixBall()
    order, d = reflection.shape[-3], reflection.shape[-1]
    noise = torch.randn(order, d, d, generator=generator, dtype=reflection.dtype)
    return ball.translate(reflection, -ball.expmap(torch.zeros_like(noise), magnitude * noise))
