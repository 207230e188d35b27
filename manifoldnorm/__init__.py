"""Layers, optimizers and graph norms for networks whose states, weights or data live on a manifold."""

from importlib.metadata import PackageNotFoundError, version

from manifoldnorm import linalg, manifolds, nn, optim, signal
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
)

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
    "__version__",
    "linalg",
    "manifolds",
    "nn",
    "optim",
    "signal",
]
