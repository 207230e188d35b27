"""Simulated actions of a planar skeleton: four limbs whose hands and feet are complex signals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LIMBS = 4


@dataclass(frozen=True)
class Actions:
    """Recordings of actions.

    Attributes
    ----------
    signals : Tensor
        Positions x + iy of two hands and two feet relative to their shoulders and hips, shape (recordings, frames, 4),
        complex128.
    labels, subjects : Tensor
        Shape (recordings,), int64.
    """

    signals: Tensor
    labels: Tensor
    subjects: Tensor

    def select(self, mask: Tensor) -> Actions:
        """Return the recordings where `mask` is True."""
        return Actions(self.signals[mask], self.labels[mask], self.subjects[mask])


def skeleton_actions(
    recordings: int, *, classes: int = 6, subjects: int = 4, frames: int = 64, noise: float = 0.05, seed: int
) -> Actions:
    """Draw recordings of each action by each subject.

    A limb is an upper and a lower link. An action gives each link an amplitude, a frequency and a phase of swing; a
    recording jitters them and drifts in tempo. A subject has its own limb lengths, tempo, posture and a camera that is
    rotated, and mixes the limbs a little, as a misplaced set of sensors would.

    Parameters
    ----------
    recordings : int
        Recordings of each action by each subject.
    classes, subjects, frames : int
        Numbers of actions, of subjects, and of frames in a recording.
    noise : float
        Standard deviation of the position error, in units of a limb.
    seed : int
        Of everything.

    Examples
    --------
    >>> skeleton_actions(3, seed=0).signals.shape
    torch.Size([72, 64, 4])
    """
    if min(recordings, classes, subjects, frames) < 1:
        raise ValueError("recordings, classes, subjects and frames must be positive")
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    amplitude = 0.2 + 0.8 * uniform(classes, LIMBS, 2)
    frequency = 0.04 + 0.08 * uniform(classes, 1, 1) * (1 + torch.arange(2).double())
    phase = 2 * math.pi * uniform(classes, LIMBS, 2)
    length = torch.exp(0.15 * normal(subjects, LIMBS, 2))
    tempo = torch.exp(0.1 * normal(subjects))
    posture = 0.25 * normal(subjects, LIMBS, 2)
    mixing = torch.matrix_exp(0.35 * torch.complex(normal(subjects, LIMBS, LIMBS), normal(subjects, LIMBS, LIMBS)))
    labels = torch.arange(classes).repeat_interleave(recordings).repeat(subjects)
    who = torch.arange(subjects).repeat_interleave(classes * recordings)
    count = len(labels)
    time = torch.arange(frames, dtype=torch.float64)
    speed = tempo[who] * torch.exp(0.08 * normal(count))
    rate = (frequency[labels] * speed[:, None, None])[..., None] * time
    start = phase[labels] + 2 * math.pi * uniform(count, 1, 1) + 0.3 * normal(count, LIMBS, 2)
    swing = amplitude[labels] * torch.exp(0.15 * normal(count, LIMBS, 2))
    angle = posture[who][..., None] + swing[..., None] * torch.sin(2 * math.pi * rate + start[..., None])
    links = length[who][..., None] * torch.exp(1j * (angle.cumsum(2) - math.pi / 2))
    position = links.sum(2).transpose(1, 2)
    observed = position @ mixing[who].mT
    error = torch.complex(normal(count, frames, LIMBS), normal(count, frames, LIMBS))
    return Actions(observed - observed.mean(1, keepdim=True) + noise * error, labels, who)
