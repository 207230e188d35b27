"""Spectral functions: values against scipy, derivatives at every kind of spectrum, bad matrices, transformations."""

import math

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manifoldnorm import linalg
from manifoldnorm.linalg import (
    ClampMin,
    Exp,
    InverseSqrt,
    Log,
    Power,
    SmoothFunction,
    SpectralFunction,
    Sqrt,
    spectral,
)
from tests.golden_files import faults

FUNCTIONS = [
    Log(),
    Exp(),
    Sqrt(),
    InverseSqrt(),
    Power(0.3),
    Power(-1.0),
    Power(3.0),
    ClampMin(0.5),
    ClampMin(1.5),
    SmoothFunction(torch.sin, torch.cos, lambda w: -torch.sin(w)),
]
ORACLES = {
    "logm": (linalg.logm, scipy.linalg.logm),
    "expm": (linalg.expm, scipy.linalg.expm),
    "sqrtm": (linalg.sqrtm, scipy.linalg.sqrtm),
    "inv_sqrtm": (linalg.inv_sqrtm, lambda a: scipy.linalg.inv(scipy.linalg.sqrtm(a))),
    "powm": (lambda a: linalg.powm(a, 0.7), lambda a: scipy.linalg.fractional_matrix_power(a, 0.7)),
}


def positive(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(*batch, n, n, dtype=dtype, generator=generator)
    return a @ a.mH / n + 0.3 * torch.eye(n, dtype=dtype)


def spectra(dtype: torch.dtype) -> Tensor:
    """Distinct, repeated, nearly repeated and identity spectra, in a common random frame but for the identity."""
    frame = torch.linalg.qr(torch.randn(3, 3, dtype=dtype, generator=torch.Generator().manual_seed(3)))[0]
    values = torch.tensor(
        [[0.4, 1.1, 2.3], [1.0, 1.0, 2.0], [1.0, 1.0 + 1e-9, 2.0], [1.0, 1.0, 1.0], [1e-3, 1.0, 40.0]],
        dtype=torch.float64,
    )
    x = (frame * values.unsqueeze(-2).to(dtype)) @ frame.mH
    x[3] = torch.eye(3, dtype=dtype)
    return linalg.symmetrize(x)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_values_agree_with_scipy(name: str, dtype: torch.dtype, n: int) -> None:
    ours, oracle = ORACLES[name]
    x = positive(4, n=n, dtype=dtype)
    y = ours(x)
    assert y.dtype == dtype
    assert torch.equal(y, y.mH)
    for a, b in zip(x, y):
        torch.testing.assert_close(b, torch.as_tensor(oracle(a.numpy()), dtype=dtype), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_derivatives_at_every_kind_of_spectrum(function: SpectralFunction, dtype: torch.dtype) -> None:
    x = spectra(dtype)[:4].requires_grad_()
    assert torch.autograd.gradcheck(lambda a: spectral(a, function), x, atol=1e-6)
    assert torch.autograd.gradgradcheck(lambda a: spectral(a, function), x, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("function", FUNCTIONS[:7], ids=lambda f: type(f).__name__)
def test_divided_differences_agree_with_quotients_and_limits(function: SpectralFunction) -> None:
    """At gaps from 1e-15 to 1, in 50-digit arithmetic."""
    mpmath = pytest.importorskip("mpmath")
    scalar = {
        "Log": mpmath.log,
        "Exp": mpmath.exp,
        "Sqrt": mpmath.sqrt,
        "InverseSqrt": lambda w: 1 / mpmath.sqrt(w),
        "Power": lambda w: mpmath.power(w, mpmath.mpf(getattr(function, "exponent", 1.0))),
    }[type(function).__name__]
    with mpmath.workdps(60):
        for gap in (1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.3, 0.6, 1.0, 30.0):
            a, b, c = 0.7, 0.7 * (1 + gap), 0.7 * (1 + 2.5 * gap)
            if a == b or b == c:
                continue
            x, y, z = (mpmath.mpf(v) for v in (a, b, c))
            first = (scalar(x) - scalar(y)) / (x - y)
            other = (scalar(y) - scalar(z)) / (y - z)
            ours = function.first(*(torch.tensor(v, dtype=torch.float64) for v in (a, b)))
            assert float(ours) == pytest.approx(float(first), rel=2e-14)
            second = function.second(*(torch.tensor(v, dtype=torch.float64) for v in (c, a, b)))
            assert float(second) == pytest.approx(float((first - other) / (x - z)), rel=5e-10, abs=1e-12)


def test_large_eigenvalue_gaps_do_not_overflow() -> None:
    x = torch.diag(torch.tensor([-800.0, -1.0, 2.0], dtype=torch.float64)).requires_grad_()
    linalg.expm(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    y = torch.diag(torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64)).requires_grad_()
    linalg.logm(y).diagonal().sum().backward()
    assert y.grad is not None
    torch.testing.assert_close(y.grad.diagonal(), 1 / y.detach().diagonal(), rtol=1e-12, atol=0)


def test_power_in_its_exponent() -> None:
    x = spectra(torch.float64)[:4].requires_grad_()
    p = torch.tensor([0.7, -0.4, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(linalg.powm, (x, p), atol=1e-6)
    assert torch.autograd.gradgradcheck(linalg.powm, (x, p), atol=1e-5, fast_mode=True)
    torch.testing.assert_close(linalg.powm(x[0], p[0]), linalg.powm(x[0], 0.7))
    grid = linalg.powm(x[:, None], p[None])
    assert grid.shape == (4, 4, 3, 3)
    torch.testing.assert_close(grid[2, 1], linalg.powm(x[2], -0.4))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: type(f).__name__)
def test_frechet_is_the_directional_derivative(function: SpectralFunction) -> None:
    x = spectra(torch.float64)[:1]
    u = linalg.symmetrize(torch.randn(3, 3, dtype=torch.float64))
    h = 1e-5
    quotient = (spectral(x + h * u, function) - spectral(x - h * u, function)) / (2 * h)
    torch.testing.assert_close(linalg.frechet(x, u, function), quotient, rtol=1e-7, atol=1e-8)


def test_third_derivatives_say_that_they_are_missing() -> None:
    x = positive(n=2).requires_grad_()
    first = torch.autograd.grad(linalg.logm(x).pow(2).sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="third derivatives"):
        torch.autograd.grad(second.sum(), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_closed_form_of_two_by_two(dtype: torch.dtype) -> None:
    """The batch is large enough for the closed form; graded, diagonal, zero and indefinite matrices are in it."""
    x = torch.randn(400, 2, 2, dtype=dtype)
    x = linalg.symmetrize(x)
    x[0], x[1] = 0, torch.eye(2)
    x[2], x[3] = torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([1.0, 2.0]))
    x[4] = torch.tensor([[1.0, 1e-9], [1e-9, 1e-12]])
    values, vectors = linalg.eigh(x)
    torch.testing.assert_close((vectors * values.unsqueeze(-2)) @ vectors.mH, x, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(vectors.mH @ vectors, torch.eye(2, dtype=dtype).expand_as(x), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(values[5:], torch.linalg.eigvalsh(x[5:]), rtol=1e-12, atol=1e-13)
    assert float(values[4, 0]) == pytest.approx(1e-12 - 1e-18, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("batch", [5, 300])
def test_a_bad_matrix_spoils_only_itself(n: int, batch: int) -> None:
    x = positive(batch, n=n)
    good = linalg.logm(x)
    x[1, 0, 0] = torch.nan
    x[2] = -torch.eye(n)
    x[3] = 0
    x[4, -1, 0] = torch.inf
    y = linalg.logm(x)
    bad = torch.tensor([i in (1, 2, 3, 4) for i in range(batch)])
    assert torch.isnan(y[bad]).all(-1).all(-1).all()
    torch.testing.assert_close(y[~bad], good[~bad])
    leaf = x.requires_grad_()
    torch.nan_to_num(linalg.logm(leaf)[~bad]).sum().backward()
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad[~bad]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_keeps_its_dtype(dtype: torch.dtype) -> None:
    x = positive(6, n=4).to(dtype).requires_grad_()
    y = linalg.logm(x)
    assert y.dtype == dtype
    reference = linalg.logm(linalg.symmetrize(x.detach().double()))
    torch.testing.assert_close(y.double(), reference, rtol=0, atol=4 * torch.finfo(dtype).eps)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_autocast_is_left_outside() -> None:
    x = positive(3).float().requires_grad_()
    plain = linalg.logm(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = linalg.logm(x)
        assert cast.dtype == torch.float32
        torch.testing.assert_close(cast, plain)
        grad = torch.autograd.grad(cast.square().sum(), x)[0]
    torch.testing.assert_close(grad, torch.autograd.grad(plain.square().sum(), x)[0])


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.booleans())
def test_shapes(a: int, b: int, n: int, expand: bool) -> None:
    x = positive(1, 1, n=n).expand(a, b, n, n) if expand else positive(a, b, n=n)
    y = linalg.logm(x)
    assert y.shape == x.shape
    if y.numel():
        torch.testing.assert_close(y[-1, -1], linalg.logm(x[-1, -1].clone()))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"square matrices.*\(2, 3\)"):
        linalg.logm(torch.ones(2, 3))
    with pytest.raises(TypeError, match="int64"):
        linalg.eigh(torch.eye(2, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="value"):
        spectral(torch.eye(2), SpectralFunction())


def test_transforms_of_torch_func() -> None:
    x = positive(3)
    torch.testing.assert_close(torch.func.vmap(linalg.logm)(x), linalg.logm(x))
    per_sample = torch.func.vmap(torch.func.grad(lambda a: linalg.expm(a).sum()))(x)
    leaf = x.clone().requires_grad_()
    linalg.expm(leaf).sum().backward()
    torch.testing.assert_close(per_sample, leaf.grad)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda a: linalg.logm(a).square().sum()))(torch.eye(3).double())
    torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compile_fullgraph(dtype: torch.dtype) -> None:
    x = positive(3).to(dtype).requires_grad_()
    compiled = torch.compile(linalg.logm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), linalg.logm(x))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x).square().sum(), x)[0], torch.autograd.grad(linalg.logm(x).square().sum(), x)[0]
    )


# Cases from bug reports of other libraries.


def tensor(values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("case", ["S21", "S22"])
def test_gradient_of_the_logarithm(case: str) -> None:
    data = faults("spd")[case]
    a = tensor(data["inputs"]["A"]).requires_grad_()
    (tensor(data["inputs"]["G"]) * linalg.logm(a)).sum().backward()
    torch.testing.assert_close(a.grad, tensor(data["expected"]), rtol=1e-9, atol=1e-9)


def test_ill_conditioned_float32_logarithm() -> None:
    data = faults("spd")["S23"]
    result = linalg.logm(tensor(data["inputs"]["A"], torch.float32))
    expected = tensor(data["expected"])
    error = torch.linalg.matrix_norm(result.double() - expected) / torch.linalg.matrix_norm(expected)
    assert float(error) <= data["tolerance"]["rel_fro"]


def test_hermitian_gradient_at_a_multiple_of_the_identity() -> None:
    data = faults("spd")["S30"]
    g = torch.view_as_complex(tensor(data["inputs"]["G"]))
    a = (data["inputs"]["scale"] * torch.eye(2, dtype=torch.complex128)).requires_grad_()
    (g.conj() * linalg.logm(a)).sum().real.backward()
    torch.testing.assert_close(a.grad, torch.view_as_complex(tensor(data["expected"])), rtol=1e-9, atol=1e-9)


def test_nan_in_one_matrix() -> None:
    x = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    x[1, 0, 0] = math.nan
    y = linalg.logm(x)
    assert torch.equal(y[[0, 2]], torch.zeros(2, 3, 3, dtype=torch.float64))
    assert torch.isnan(y[1]).all()
