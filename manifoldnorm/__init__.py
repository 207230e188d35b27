"""Layers, optimizers and graph norms for networks whose states, weights or data live on a manifold."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from manifoldnorm import linalg, manifolds, nn
from manifoldnorm.manifolds import (
    HPD,
    ComplexBall,
    ConvergenceWarning,
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
    CorrelationLogScaled,
    CorrelationOffLog,
    Euclidean,
    Flat,
    FrobeniusSphere,
    Grassmann,
    LieGroup,
    Manifold,
    MatrixBall,
    Oblique,
    PoincareBall,
    PoincareDisk,
    Product,
    Pullback,
    Rotations,
    SiegelDisk,
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
    SpectralSphere,
    Sphere,
    Stiefel,
    UniquenessWarning,
    correlation_from_covariance,
)

if TYPE_CHECKING:
    from manifoldnorm import optim, signal

try:
    __version__ = version("manifoldnorm")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = [
    "HPD",
    "ComplexBall",
    "ConvergenceWarning",
    "CorrelationEuclideanCholesky",
    "CorrelationLogEuclideanCholesky",
    "CorrelationLogScaled",
    "CorrelationOffLog",
    "Euclidean",
    "Flat",
    "FrobeniusSphere",
    "Grassmann",
    "LieGroup",
    "Manifold",
    "MatrixBall",
    "Oblique",
    "PoincareBall",
    "PoincareDisk",
    "Product",
    "Pullback",
    "Rotations",
    "SPDAffineInvariant",
    "SPDCholeskyRightInvariant",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "SiegelDisk",
    "SpectralSphere",
    "Sphere",
    "Stiefel",
    "UniquenessWarning",
    "__version__",
    "correlation_from_covariance",
    "linalg",
    "manifolds",
    "nn",
    "optim",
    "signal",
]


def __getattr__(name: str) -> Any:
    """Import `manifoldnorm.optim` and `manifoldnorm.signal` when they are first used."""
    if name in ("optim", "signal"):
        return import_module(f"manifoldnorm.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
