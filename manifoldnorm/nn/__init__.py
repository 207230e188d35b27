"""Layers for points on manifolds."""

from manifoldnorm.nn import functional, hyperbolic, matrix_ball, ngpt, parametrize, spdnet
from manifoldnorm.nn.batchnorm import (
    LieBatchNorm,
    RiemannianBatchNorm,
)
from manifoldnorm.nn.domain_batchnorm import (
    DomainBatchNorm,
)
from manifoldnorm.nn.parametrize import (
    LearnablePoint,
)
from manifoldnorm.nn.residual import (
    CaySpheretNorm,
    GeoNorm,
    ProjSpheretNorm,
    SphereResidual,
    SpheretNorm,
)
from manifoldnorm.nn.synchronize import (
    convert_sync_batchnorm,
)

__all__ = [
    "CaySpheretNorm",
    "DomainBatchNorm",
    "GeoNorm",
    "LearnablePoint",
    "LieBatchNorm",
    "ProjSpheretNorm",
    "RiemannianBatchNorm",
    "SphereResidual",
    "SpheretNorm",
    "convert_sync_batchnorm",
    "functional",
    "hyperbolic",
    "matrix_ball",
    "ngpt",
    "parametrize",
    "spdnet",
]
