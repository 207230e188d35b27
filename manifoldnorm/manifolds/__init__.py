"""What a point is: one class per geometry, all with the protocol of `Manifold`."""

from manifoldnorm.manifolds.base import (
    LieGroup,
    Manifold,
)
from manifoldnorm.manifolds.checks import (
    ConvergenceWarning,
)
from manifoldnorm.manifolds.complex_ball import (
    ComplexBall,
    PoincareDisk,
)
from manifoldnorm.manifolds.correlation_cholesky import (
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
)
from manifoldnorm.manifolds.correlation_logarithm import (
    CorrelationLogScaled,
    CorrelationOffLog,
)
from manifoldnorm.manifolds.correlation_points import (
    correlation_from_covariance,
)
from manifoldnorm.manifolds.euclidean import (
    Euclidean,
)
from manifoldnorm.manifolds.frames import (
    Grassmann,
    Stiefel,
)
from manifoldnorm.manifolds.hpd import (
    HPD,
)
from manifoldnorm.manifolds.matrix_spheres import (
    FrobeniusSphere,
    Oblique,
)
from manifoldnorm.manifolds.poincare import (
    PoincareBall,
)
from manifoldnorm.manifolds.product import (
    Product,
)
from manifoldnorm.manifolds.pullback import (
    Flat,
    Pullback,
)
from manifoldnorm.manifolds.rotation_mean import (
    UniquenessWarning,
)
from manifoldnorm.manifolds.rotations import (
    Rotations,
)
from manifoldnorm.manifolds.siegel import (
    MatrixBall,
    SiegelDisk,
)
from manifoldnorm.manifolds.spd import (
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
)
from manifoldnorm.manifolds.spectral_sphere import (
    SpectralSphere,
)
from manifoldnorm.manifolds.sphere import (
    Sphere,
)

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
    "correlation_from_covariance",
]
