"""Simulated sequences of joint rotations, like those of a skeleton in motion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manifoldnorm.linalg.rotation3 import rotation_from_vector


@dataclass(frozen=True)
class RotationSequences:
    """Sequences of rotations.

    Attributes
    ----------
    rotations : Tensor
        Shape (sequences, frames, joints, 3, 3), float64.
    labels, subjects : Tensor
        Shape (sequences,), int64.
    """

    rotations: Tensor
    labels: Tensor
    subjects: Tensor

    def __len__(self) -> int:
        return len(self.rotations)

    def select(self, mask: Tensor) -> RotationSequences:
        """Return the sequences where `mask` is True."""
        return RotationSequences(self.rotations[mask], self.labels[mask], self.subjects[mask])


def skeleton_like(
    sequences: int,
    *,
    classes: int = 6,
    subjects: int = 4,
    joints: int = 5,
    frames: int = 8,
    noise: float = 0.8,
    shift: float = 1.0,
    seed: int,
) -> RotationSequences:
    """Draw sequences of each class by each subject.

    A class gives each joint an axis, an amplitude and a phase: the joint swings by exp(a sin(2 pi t + p) axis). A
    sequence jitters amplitude and phase, and each frame has wrapped Gaussian noise. A subject multiplies every joint
    from the left by a rotation of its own (how the sensors sit), the same in all its sequences; so subjects differ by a
    translation of the group, which a batch norm with a state per subject removes.

    Parameters
    ----------
    sequences : int
        Sequences of each class by each subject.
    classes, subjects, joints, frames : int
        Their numbers.
    noise : float
        Standard deviation of the rotation vectors of the noise, in radians.
    shift : float
        Standard deviation of the rotation vectors of the subjects.
    seed : int
        Of everything.

    Examples
    --------
    >>> skeleton_like(3, seed=0).rotations.shape
    torch.Size([72, 8, 5, 3, 3])
    """
    if min(sequences, classes, subjects, joints, frames) < 1:
        raise ValueError(
            f"sequences, classes, subjects, joints and frames must be positive, got "
            f"{(sequences, classes, subjects, joints, frames)}"
        )
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    axes = torch.nn.functional.normalize(normal(classes, joints, 3), dim=-1)
    amplitudes = 0.5 + 0.3 * normal(classes, joints).abs()
    phases = 2 * math.pi * torch.rand(classes, joints, generator=generator, dtype=torch.float64)
    mounting = rotation_from_vector(shift * normal(subjects, joints, 3))
    label = torch.arange(classes).repeat_interleave(sequences).repeat(subjects)
    subject = torch.arange(subjects).repeat_interleave(classes * sequences)
    total = len(label)
    time = torch.linspace(0, 1, frames + 1, dtype=torch.float64)[:-1, None]
    amplitude = amplitudes[label] * torch.exp(0.2 * normal(total, 1))
    phase = phases[label] + 0.3 * normal(total, 1)
    swing = amplitude[:, None] * torch.sin(2 * math.pi * time + phase[:, None])
    clean = rotation_from_vector(swing.unsqueeze(-1) * axes[label][:, None])
    error = rotation_from_vector(noise * normal(total, frames, joints, 3))
    return RotationSequences(mounting[subject][:, None] @ clean @ error, label, subject)
