"""The four correlation geometries."""

from manifoldnorm.manifolds.correlation import (
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
    CorrelationLogScaled,
    CorrelationOffLog,
)
from manifoldnorm.testing import ManifoldSuite


class TestEuclideanCholesky(ManifoldSuite):
    manifold = CorrelationEuclideanCholesky()
    event_shape = (4, 4)


class TestLogEuclideanCholesky(ManifoldSuite):
    manifold = CorrelationLogEuclideanCholesky()
    event_shape = (4, 4)


class TestOffLog(ManifoldSuite):
    second_order_maps = False  # they contain a first differential of a spectral function
    manifold = CorrelationOffLog()
    event_shape = (4, 4)


class TestOffLogParameters(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationOffLog(alpha=0.7, beta=-0.2, gamma=0.4)
    event_shape = (4, 4)


class TestLogScaled(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationLogScaled()
    event_shape = (4, 4)


class TestLogScaledParameters(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationLogScaled(alpha=0.7, delta=-0.3, zeta=0.4)
    event_shape = (4, 4)
