"""Layers, optimizers and graph norms for networks whose states, weights or data live on a manifold."""

from importlib.metadata import PackageNotFoundError, version

from manifoldnorm import linalg, manifolds
from manifoldnorm.manifolds import (
    ConvergenceWarning,
    Euclidean,
    Flat,
    LieGroup,
    Manifold,
    Product,
    Pullback,
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
)

try:
    __version__ = version("manifoldnorm")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = [
    "ConvergenceWarning",
    "Euclidean",
    "Flat",
    "LieGroup",
    "Manifold",
    "Product",
    "Pullback",
    "SPDAffineInvariant",
    "SPDCholeskyRightInvariant",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "__version__",
    "linalg",
    "manifolds",
]
