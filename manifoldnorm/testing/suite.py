"""The laws that every geometry must satisfy, as a pytest class: a new geometry gets them all for a few lines."""

from __future__ import annotations

from manifoldnorm.testing.batch_laws import BatchLaws
from manifoldnorm.testing.calculus_laws import CalculusLaws
from manifoldnorm.testing.geometry_laws import GeometryLaws


class ManifoldSuite(GeometryLaws, BatchLaws, CalculusLaws):
    """Base class of a geometry's tests; subclass it with a name that starts with `Test`.

    Attributes
    ----------
    manifold : Manifold
        The geometry under test.
    event_shape : tuple of int
        The event shape of the test points.
    dtype : torch.dtype
        float64, or complex128 for complex geometries.
    tolerance : float
        Relative error that the laws may have in float64.
    float32_tolerance : float
        Relative error of float32 results against float64 ones on the same inputs.
    mean_tolerance : float
        For the mean and variance theorems.
    unsupported : frozenset of str
        Methods that must raise NotImplementedError, such as "transp".
    retraction_order : int
        1, or 2 for a second-order retraction.
    second_order : bool
        Whether second derivatives are claimed for squared distances.
    second_order_maps : bool
        Whether they are claimed for logarithms and exponentials too (a pullback's contain a differential already).
    second_order_mean : bool
        Whether second derivatives are claimed through the mean and the batch norm.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> class TestLogEuclidean(ManifoldSuite):
    ...     manifold = SPDLogEuclidean()
    ...     event_shape = (3, 3)
    """
