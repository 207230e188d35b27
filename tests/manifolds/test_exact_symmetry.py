"""Symmetric matrices come out symmetric to the last bit, so that a float32 result is a point in float64 too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import manifoldnorm
from manifoldnorm import Manifold
from manifoldnorm.manifolds.correlation_points import CorrelationPoints, correlation_from_covariance
from manifoldnorm.nn import RiemannianBatchNorm

GEOMETRIES: tuple[Manifold, ...] = (
    manifoldnorm.SPDAffineInvariant(),
    manifoldnorm.SPDAffineInvariant(power=0.5, beta=0.1),
    manifoldnorm.SPDLogEuclidean(),
    manifoldnorm.SPDLogCholesky(),
    manifoldnorm.SPDCholeskyRightInvariant(),
    manifoldnorm.CorrelationEuclideanCholesky(),
    manifoldnorm.CorrelationLogEuclideanCholesky(),
    manifoldnorm.CorrelationOffLog(),
    manifoldnorm.CorrelationLogScaled(),
    manifoldnorm.HPD(),
    manifoldnorm.SiegelDisk(),
)


def _results(m: Manifold, n: int, dtype: torch.dtype, seed: int) -> dict[str, tuple[Tensor, bool]]:
    """Name, matrices, and whether they are points rather than tangent vectors."""
    generator = torch.Generator().manual_seed(seed)
    x = m.random(7, n, n, generator=generator, dtype=dtype)
    y = m.random(7, n, n, generator=generator, dtype=dtype)
    u = 0.1 * m.random_tangent(x, generator=generator)
    layer = RiemannianBatchNorm(m, (n, n), dtype=dtype)
    points: dict[str, Callable[[], Tensor]] = {
        "random": lambda: x,
        "projx": lambda: m.projx(x + 1e-3 * u),
        "expmap": lambda: m.expmap(x, u),
        "retr": lambda: m.retr(x, u),
        "geodesic": lambda: m.geodesic(x, y, 0.3),
        "mean": lambda: m.mean(x),
        "uncenter": lambda: m.uncenter(m.center(x, y), y),
        "training": lambda: layer(x).detach(),
        "eval": lambda: layer.eval()(x).detach(),
        "bias_point": lambda: layer.bias_point.detach(),
    }
    tangents: dict[str, Callable[[], Tensor]] = {
        "proju": lambda: u,
        "logmap": lambda: m.logmap(x, y),
        "transp": lambda: m.transp(x, y, u),
        "egrad2rgrad": lambda: m.egrad2rgrad(x, u),
        "center": lambda: m.center(x, y),
    }
    results = {name: (function(), True) for name, function in points.items()}
    unsupported = {"transp"} if isinstance(m, manifoldnorm.SiegelDisk) else set()
    return {**results, **{k: (f(), False) for k, f in tangents.items() if k not in unsupported}}


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("m", GEOMETRIES, ids=repr)
def test_results_are_exactly_symmetric(m: Manifold, double: bool, n: int) -> None:
    if isinstance(m, manifoldnorm.HPD | manifoldnorm.SiegelDisk):
        dtype = torch.complex128 if double else torch.complex64
    else:
        dtype = torch.float64 if double else torch.float32
    for name, (value, is_point) in _results(m, n, dtype, n).items():
        flipped = value.mT if isinstance(m, manifoldnorm.SiegelDisk) else value.mH
        assert torch.equal(value, flipped), name
        if isinstance(m, CorrelationPoints):
            diagonal = torch.diagonal(value, dim1=-2, dim2=-1)
            assert torch.equal(diagonal, torch.full_like(diagonal, float(is_point))), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correlation_of_covariance_is_exactly_symmetric(dtype: torch.dtype) -> None:
    noise = torch.randn(200, 9, 6, dtype=dtype)
    result = correlation_from_covariance(noise.mT @ noise)
    assert torch.equal(result, result.mT)
    wide = result.to(torch.float64)
    manifoldnorm.CorrelationOffLog().assert_check_point_on_manifold(wide)
