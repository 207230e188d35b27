"""Logarithm and exponential of unit triangular matrices against long series in high precision."""

import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg.triangular import (
    exp_strictly_lower,
    exp_strictly_lower_frechet,
    gauss_legendre,
    log_unit_lower,
    log_unit_lower_frechet,
)

DOUBLE = torch.float64


def strictly_lower(n: int, scale: float, *batch: int, seed: int = 0) -> Tensor:
    noise = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return torch.tril(scale * noise, -1)


def exact(x: Tensor, coefficient: str) -> Tensor:
    """Sum the terminating power series of exp(x) - 1 or log(1 + x) with 80 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(80):
        matrix, n = mpmath.matrix(x.tolist()), x.shape[-1]
        power, total = mpmath.eye(n), mpmath.zeros(n)
        for k in range(1, n):
            power = power * matrix
            total += power / mpmath.factorial(k) if coefficient == "exp" else power * mpmath.mpf((-1) ** (k - 1)) / k
        return torch.tensor([[float(total[i, j]) for j in range(n)] for i in range(n)], dtype=DOUBLE)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_gauss_legendre_is_exact_for_polynomials(count: int) -> None:
    nodes, weights = gauss_legendre(count)
    for degree in range(2 * count):
        value = sum(w * t**degree for t, w in zip(nodes, weights))
        assert value == pytest.approx(1 / (degree + 1), rel=1e-13)


@pytest.mark.parametrize(
    ("n", "scale"), [(1, 1.0), (2, 1.0), (3, 5.0), (4, 0.1), (8, 1.0), (17, 0.5), (18, 0.5), (24, 1.0)]
)
def test_against_exact_series(n: int, scale: float) -> None:
    x = strictly_lower(n, scale)
    identity = torch.eye(n, dtype=DOUBLE)
    expected = identity + exact(x, "exp")
    error = (exp_strictly_lower(x) - expected).abs().max() / expected.abs().max()
    assert float(error) < 1e-14
    expected = exact(x, "log")
    error = (log_unit_lower(identity + x) - expected).abs().max() / (1 + expected.abs().max())
    assert float(error) < 1e-13


def test_logarithm_of_a_large_factor_where_the_series_cancels() -> None:
    """Where float64 loses ten digits to the power series, the quadrature keeps twelve."""
    x = exp_strictly_lower(strictly_lower(24, 3.0).abs())
    nilpotent = torch.tril(x, -1)
    expected = exact(nilpotent, "log")
    power, series = torch.eye(24, dtype=DOUBLE), torch.zeros(24, 24, dtype=DOUBLE)
    for k in range(1, 24):
        power = power @ nilpotent
        series -= (-1) ** k / k * power
    scale = float(expected.abs().max())
    assert float((series - expected).abs().max()) > 1e-6 * scale
    assert float((log_unit_lower(x) - expected).abs().max()) < 1e-11 * scale


@pytest.mark.parametrize("n", [2, 3, 5, 19])
def test_derivatives(n: int) -> None:
    x = strictly_lower(n, 0.5, 2).requires_grad_()
    second = n < 19
    for function in (exp_strictly_lower, log_unit_lower):
        assert torch.autograd.gradcheck(function, x, fast_mode=not second)
        if second:
            assert torch.autograd.gradgradcheck(function, x)
    u = strictly_lower(n, 1.0, 2, seed=1)
    for function, differential in (
        (exp_strictly_lower, exp_strictly_lower_frechet),
        (log_unit_lower, log_unit_lower_frechet),
    ):
        numeric = (function(x + 1e-5 * u) - function(x - 1e-5 * u)) / 2e-5
        torch.testing.assert_close(differential(x, u), numeric, rtol=1e-7, atol=1e-7)


def test_only_the_lower_part_is_read() -> None:
    x = strictly_lower(5, 0.5)
    full = x + torch.triu(torch.ones(5, 5, dtype=DOUBLE))
    assert torch.equal(exp_strictly_lower(full), exp_strictly_lower(x))
    assert torch.equal(log_unit_lower(full), log_unit_lower(x))


@pytest.mark.parametrize("n", [3, 4, 9, 17, 18, 30])
def test_large_logarithms_of_ill_conditioned_factors(n: int) -> None:
    """Row sums of thousands, from Cholesky factors of condition 1e4: the exponential is as right as it is for small."""
    generator = torch.Generator().manual_seed(n)
    q = torch.linalg.qr(torch.randn(n, n, dtype=DOUBLE, generator=generator))[0]
    factor = torch.linalg.cholesky((q * torch.logspace(0, -8, n, dtype=DOUBLE)) @ q.mT)
    x = log_unit_lower(factor / factor.diagonal().unsqueeze(-1)).requires_grad_()
    assert float(x.detach().abs().sum(-1).max()) > 100
    expected = torch.eye(n, dtype=DOUBLE) + exact(x.detach(), "exp")
    rows = expected.norm(dim=-1, keepdim=True)
    small = strictly_lower(n, 0.5)
    result = exp_strictly_lower(torch.stack([small, x, torch.full_like(small, torch.nan)]))
    assert float(((result[1].detach() - expected) / rows).abs().max()) < 1e-12
    torch.testing.assert_close(result[0], exp_strictly_lower(small), rtol=1e-13, atol=1e-14)
    assert result[2].isnan().any()
    weight = torch.randn(n, n, dtype=DOUBLE, generator=generator) / rows
    (gradient,) = torch.autograd.grad((weight * exp_strictly_lower(x)).sum(), x)
    direction = strictly_lower(n, 1.0, seed=1) * (1 + x.detach().abs())
    derivative = (weight * exp_strictly_lower_frechet(x.detach(), direction)).sum()
    assert float((gradient * direction).sum()) == pytest.approx(float(derivative), rel=1e-9)


def test_out_of_range_is_nan_alone_and_dtypes_are_kept() -> None:
    """Where the largest norm cannot be read, as many squarings as for a norm of 64 are made."""
    x = strictly_lower(20, 0.5, 3)
    x[1] *= 1e3
    for function, scale in ((torch.func.vmap(exp_strictly_lower), 1.0), (exp_strictly_lower, 1e12)):
        large = x.clone()
        large[1] *= scale
        result = function(large.float())
        assert result.dtype == torch.float32
        assert torch.isnan(result[1]).all()
        torch.testing.assert_close(result[[0, 2]].double(), exp_strictly_lower(x[[0, 2]]), rtol=1e-6, atol=1e-5)


def test_vmap_equals_the_batch() -> None:
    x = strictly_lower(5, 0.5, 3)
    for function in (exp_strictly_lower, log_unit_lower):
        torch.testing.assert_close(torch.func.vmap(function)(x), function(x))
