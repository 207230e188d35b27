"""Our manifolds in geoopt's optimizers and containers.

Our manifolds have the methods that geoopt's optimizers call, so `geoopt.ManifoldParameter(t, manifold=ours)` trains as
it is. Where geoopt asks for one of its own classes (`geoopt.Scaled`, `geoopt.ProductManifold`), `as_geoopt` makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from manifoldnorm.manifolds import Manifold

if TYPE_CHECKING:
    import geoopt


def _import_geoopt() -> Any:
    try:
        import geoopt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('this needs geoopt: pip install "manifoldnorm[geoopt]"', name="geoopt") from error
    return geoopt


def parameter(point: Tensor, manifold: Manifold, *, requires_grad: bool = True) -> geoopt.ManifoldParameter:
    """Make a geoopt parameter whose optimizer steps follow one of our manifolds.

    Parameters
    ----------
    point : Tensor
        The initial value; it is checked to lie on the manifold.
    manifold : Manifold
        Ours.
    requires_grad : bool
        As for any parameter.

    Examples
    --------
    >>> import pytest
    >>> geoopt = pytest.importorskip("geoopt")
    >>> from manifoldnorm import SPDAffineInvariant
    >>> p = parameter(torch.eye(2), SPDAffineInvariant())
    >>> optimizer = geoopt.optim.RiemannianAdam([p], lr=0.1)
    """
    manifold.assert_check_point_on_manifold(point.detach(), "point")
    return _import_geoopt().ManifoldParameter(point, manifold=manifold, requires_grad=requires_grad)


def as_geoopt(manifold: Manifold) -> geoopt.Manifold:
    """Wrap one of our manifolds as a subclass of geoopt's, for its `Scaled` and `ProductManifold`.

    Parameters
    ----------
    manifold : Manifold
        Ours.

    Returns
    -------
    geoopt.Manifold
        It forwards every method; wraps of equal manifolds are equal.

    Examples
    --------
    >>> import pytest
    >>> geoopt = pytest.importorskip("geoopt")
    >>> from manifoldnorm import SPDLogCholesky
    >>> scaled = geoopt.Scaled(as_geoopt(SPDLogCholesky()), scale=2.0)
    """
    _import_geoopt()
    from manifoldnorm.interop.geoopt_wrapper import WrappedManifold

    return WrappedManifold(manifold)
