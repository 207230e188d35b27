"""Odd functions of singular values: values, first and second derivatives where textbook forms divide by zero."""

import mpmath
import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg import SpectralFunction, symmetrize
from manifoldnorm.linalg.singular import (
    AsinhRatio,
    Atanh,
    ClampMagnitude,
    Sign,
    Tanh,
    atanhm,
    odd,
    odd_frechet,
    svd,
    svdvals,
    tanhm,
)

SMOOTH = (Tanh(), Atanh(), AsinhRatio())
SHAPES = ((1, 1), (2, 2), (3, 3), (2, 3), (3, 1))


def unitary(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.complex128))[0]


def with_values(p: int, q: int, values: list[float]) -> Tensor:
    k = min(p, q)
    diagonal = torch.diag(torch.tensor(values[:k], dtype=torch.complex128))
    return unitary(p, k, 1) @ diagonal @ unitary(q, k, 2).mH


SPECTRA = {
    "generic": [0.8, 0.5, 0.2],
    "zero": [0.0, 0.0, 0.0],
    "rank one": [0.6, 0.0, 0.0],
    "unitary multiple": [0.7, 0.7, 0.7],
    "nearly equal": [0.5, 0.5 - 1e-9, 0.5 - 2e-7],
    "nearly zero": [0.5, 1e-9, 1e-12],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_first_and_second_derivatives(shape: tuple[int, int], spectrum: str) -> None:
    """Finite differences agree at every kind of spectrum: nothing divides by a gap or a singular value."""
    x = with_values(*shape, SPECTRA[spectrum]).requires_grad_()
    for function in SMOOTH:
        assert torch.autograd.gradcheck(lambda a, f=function: odd(a, f), x, eps=1e-5, atol=1e-8, rtol=1e-6)
        assert torch.autograd.gradgradcheck(
            lambda a, f=function: odd(a, f), x, eps=1e-5, atol=1e-7, rtol=1e-5, fast_mode=True
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_of_the_polar_factor_and_of_the_clamp(shape: tuple[int, int]) -> None:
    for values in ([0.8, 0.5, 0.2], [0.7, 0.7, 0.7]):
        x = with_values(*shape, values).requires_grad_()
        for function in (Sign(), ClampMagnitude(0.6)):
            assert torch.autograd.gradcheck(lambda a, f=function: odd(a, f), x, eps=1e-6, atol=1e-7)
        assert torch.autograd.gradgradcheck(lambda a: odd(a, Sign()), x, eps=1e-5, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("p", [2, 3])
def test_values_are_those_of_the_hermitian_dilation(p: int) -> None:
    x = with_values(p, 3, [0.8, 0.5, 0.2])
    zero = torch.zeros(p, p, dtype=x.dtype), torch.zeros(3, 3, dtype=x.dtype)
    dilation = torch.cat([torch.cat([zero[0], x], 1), torch.cat([x.mH, zero[1]], 1)])
    values, vectors = torch.linalg.eigh(dilation)
    expected = symmetrize((vectors * torch.tanh(values)) @ vectors.mH)[:p, p:]
    torch.testing.assert_close(tanhm(x), expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(atanhm(tanhm(x)), x, rtol=1e-13, atol=1e-13)


def exact_first(function: SpectralFunction, a: float, b: float) -> float:
    with mpmath.workdps(60):
        scalar = {
            Tanh: mpmath.tanh,
            Atanh: mpmath.atanh,
            AsinhRatio: lambda s: mpmath.asinh(s) / mpmath.sqrt(1 + s * s),
        }[type(function)]
        a, b = mpmath.mpf(a), mpmath.mpf(b)
        if a == b:
            return float(mpmath.diff(scalar, a))
        return float((scalar(a) - scalar(b)) / (a - b))


PAIRS = {
    Tanh(): [(0.0, 0.0), (3.0, 3.0 + 1e-9), (20.0, 19.0), (5.0, -7.0), (30.0, 30.0), (1.0, 0.0), (1e-9, -1e-9)],
    Atanh(): [(0.0, 0.0), (0.5, 0.5 + 1e-10), (1 - 1e-12, 1 - 3e-12), (1 - 1e-12, -0.3), (1 - 1e-9, 0.0)],
    AsinhRatio(): [(0.0, 0.0), (1e8, 1e8 + 1.0), (1e8, -1e8), (3.0, 3.0 + 1e-9), (1e5, 0.0), (2.0, -1.0)],
}


@pytest.mark.parametrize("function", PAIRS)
def test_divided_differences_do_not_cancel(function: SpectralFunction) -> None:
    """Sixty-digit references, at close arguments and far out."""
    for a, b in PAIRS[function]:
        value = function.first(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        assert float(value) == pytest.approx(exact_first(function, a, b), rel=2e-14), (a, b)


def test_decomposition_reconstructs_and_is_orthonormal() -> None:
    for p, q in SHAPES:
        x = torch.randn(4, p, q, dtype=torch.complex128)
        x[1] = 0
        left, values, right = svd(x)
        torch.testing.assert_close((left * values.unsqueeze(-2)) @ right.mH, x, rtol=1e-13, atol=1e-13)
        unit = torch.eye(min(p, q), dtype=x.dtype).expand(4, -1, -1)
        torch.testing.assert_close(left.mH @ left, unit, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(right.mH @ right, unit, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(svdvals(x), values, rtol=1e-13, atol=1e-13)


def test_columns_of_extreme_length() -> None:
    x = torch.tensor([[[3e200], [4e200]], [[3e-200], [4e-200]]], dtype=torch.complex128)
    torch.testing.assert_close(
        svd(x).values[:, 0], torch.tensor([5e200, 5e-200], dtype=torch.float64), rtol=1e-14, atol=0.0
    )


def test_a_bad_matrix_spoils_only_itself() -> None:
    x = 0.1 * torch.randn(4, 3, 3, dtype=torch.complex128)
    x[2, 0, 1] = torch.nan
    x.requires_grad_()
    y = tanhm(x)
    assert torch.isnan(y[2]).all()
    torch.testing.assert_close(y[[0, 1, 3]], tanhm(x[[0, 1, 3]]))
    y[[0, 1, 3]].abs().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(torch.view_as_real(x.grad[[0, 1, 3]])).all()
    x = 0.1 * torch.randn(2, 2, 2, dtype=torch.complex128)
    x[0, 0, 0] = torch.inf
    assert torch.isnan(svdvals(x)[0]).all()
    assert torch.isfinite(svdvals(x)[1]).all()


def test_vmap_and_functional_transforms() -> None:
    x = 0.3 * torch.randn(5, 2, 3, dtype=torch.complex128)
    torch.testing.assert_close(torch.func.vmap(tanhm)(x), tanhm(x))

    def loss(a: Tensor) -> Tensor:
        return tanhm(a).abs().square().sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), leaf.grad)


def test_directional_derivative_broadcasts() -> None:
    x, u = with_values(2, 3, [0.7, 0.7]), torch.randn(4, 2, 3, dtype=torch.complex128)
    moved = odd_frechet(x, u, Tanh())
    step = 1e-6
    expected = (tanhm(x + step * u) - tanhm(x - step * u)) / (2 * step)
    torch.testing.assert_close(moved, expected, rtol=1e-8, atol=1e-8)


def test_single_precision_is_computed_in_double() -> None:
    x = with_values(3, 3, [1 - 1e-5, 0.5, 0.1])
    exact = atanhm(x.to(torch.complex64).to(torch.complex128))
    single = atanhm(x.to(torch.complex64))
    assert single.dtype == torch.complex64
    torch.testing.assert_close(single.to(torch.complex128), exact, rtol=1e-6, atol=1e-6)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="x must hold matrices"):
        odd(torch.zeros(3), Tanh())
    with pytest.raises(TypeError, match="x must be floating point or complex"):
        odd(torch.zeros(2, 2, dtype=torch.long), Tanh())
    with pytest.raises(ValueError, match="u must hold matrices"):
        odd_frechet(torch.zeros(2, 2), torch.zeros(2), Tanh())
