"""The SPD geometries: every law of the suite, with all parameters, and the facts that are theirs alone."""

from manifoldnorm import (
    Euclidean,
    Product,
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
)
from manifoldnorm.testing import ManifoldSuite


class TestLogEuclidean(ManifoldSuite):
    manifold = SPDLogEuclidean()
    event_shape = (3, 3)
    second_order_maps = False  # they contain a first differential of a spectral function


class TestLogEuclideanTrace(ManifoldSuite):
    manifold = SPDLogEuclidean(alpha=0.5, beta=0.25)
    event_shape = (4, 4)
    second_order_maps = False  # they contain a first differential of a spectral function


class TestLogEuclideanTwo(ManifoldSuite):
    manifold = SPDLogEuclidean(beta=-0.3)
    event_shape = (2, 2)
    second_order_maps = False  # they contain a first differential of a spectral function


class TestLogCholesky(ManifoldSuite):
    manifold = SPDLogCholesky()
    event_shape = (3, 3)


class TestLogCholeskyPower(ManifoldSuite):
    manifold = SPDLogCholesky(power=0.5)
    event_shape = (3, 3)
    second_order_maps = False  # they contain a first differential of a spectral function


class TestAffineInvariant(ManifoldSuite):
    manifold = SPDAffineInvariant()
    event_shape = (3, 3)


class TestAffineInvariantPowerTrace(ManifoldSuite):
    manifold = SPDAffineInvariant(power=0.5, alpha=0.5, beta=0.25)
    event_shape = (3, 3)
    tolerance = 1e-10
    second_order_maps = False  # they contain a first differential of a spectral function


class TestCholeskyRightInvariant(ManifoldSuite):
    manifold = SPDCholeskyRightInvariant()
    event_shape = (3, 3)
    tolerance = 1e-10


class TestOneByOne(ManifoldSuite):
    manifold = SPDAffineInvariant()
    event_shape = (1, 1)


class TestEuclidean(ManifoldSuite):
    manifold = Euclidean()
    event_shape = (3,)


class TestProduct(ManifoldSuite):
    manifold = Product((Euclidean(), (2,)), (SPDAffineInvariant(), (2, 2)), weights=(1.0, 0.5))
    event_shape = (6,)
