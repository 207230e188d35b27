"""Rotations: the laws of the suite for n = 2, 3 and general n on both sides, and what is theirs alone."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg.orthogonal import expm_skew, logm_rotation, nearest_rotation, skew_part
from manifoldnorm.linalg.rotation3 import (
    axial_vector,
    cross_matrix,
    rotation_from_vector,
    vector_from_rotation,
)
from manifoldnorm.manifolds.rotation_mean import UniquenessWarning
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm, RiemannianBatchNorm
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

DOUBLE = torch.float64
FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_correlation_rotation.json").read_text())}


class RotationSuite(ManifoldSuite):
    """Points within a ball of radius one around the identity, where logarithms and means are unique."""

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (*batch, *self.event_shape)
        u = skew_part(torch.randn(*shape, generator=generator, dtype=DOUBLE))
        length = torch.rand(batch, generator=generator, dtype=DOUBLE) / torch.linalg.matrix_norm(u)
        return expm_skew(length[..., None, None] * u)


class TestPlane(RotationSuite):
    manifold = Rotations()
    event_shape = (2, 2)
    second_order_mean = False


class TestSpaceLeft(RotationSuite):
    manifold = Rotations("left")
    event_shape = (3, 3)


class TestSpaceRight(RotationSuite):
    manifold = Rotations("right")
    event_shape = (3, 3)


class TestFourDimensions(RotationSuite):
    manifold = Rotations()
    event_shape = (4, 4)
    second_order_mean = False


class TestFiveDimensionsRight(RotationSuite):
    manifold = Rotations("right")
    event_shape = (5, 5)
    second_order_mean = False
