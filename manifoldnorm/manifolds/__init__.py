"""What a point is: one class per geometry, all with the protocol of `Manifold`."""

from manifoldnorm.manifolds.base import LieGroup, Manifold
from manifoldnorm.manifolds.checks import ConvergenceWarning
from manifoldnorm.manifolds.euclidean import Euclidean
from manifoldnorm.manifolds.product import Product
from manifoldnorm.manifolds.pullback import Flat, Pullback
from manifoldnorm.manifolds.spd import (
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
)

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
]
