"""Cholesky factors: values and first two derivatives against torch's own, bad matrices, log form."""

import pytest
import torch

from manifoldnorm import linalg
from tests.linalg.test_symmetric import positive


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_and_gradients_agree_with_torch(dtype: torch.dtype, n: int) -> None:
    x = positive(4, n=n, dtype=dtype).requires_grad_()
    weight = torch.randn(4, n, n, dtype=dtype)
    ours, torchs = linalg.cholesky(x), torch.linalg.cholesky(x)
    torch.testing.assert_close(ours, torchs, rtol=1e-13, atol=1e-14)
    gradients = [torch.autograd.grad((weight.conj() * f).sum().real, x)[0] for f in (ours, torchs)]
    # torch leaves an anti-Hermitian part, which no change of a Hermitian matrix feels.
    torch.testing.assert_close(gradients[0], linalg.symmetrize(gradients[1]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("function", [linalg.cholesky, linalg.log_cholesky])
def test_second_derivatives(function: object) -> None:
    x = torch.stack([positive(n=3), torch.eye(3, dtype=torch.float64)]).requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_exp_cholesky_inverts_log_cholesky() -> None:
    x = positive(5, n=4)
    z = linalg.log_cholesky(x)
    torch.testing.assert_close(linalg.exp_cholesky(z), x, rtol=1e-13, atol=1e-13)
    noise = torch.triu(torch.randn(4, 4, dtype=torch.float64), 1)
    torch.testing.assert_close(linalg.exp_cholesky(z + noise), x, rtol=1e-13, atol=1e-13)
    leaf = z.clone().requires_grad_()
    assert torch.autograd.gradcheck(linalg.exp_cholesky, leaf)
    assert torch.autograd.gradgradcheck(linalg.exp_cholesky, leaf)


def test_directional_derivative() -> None:
    x = positive(2, n=3)
    u = linalg.symmetrize(torch.randn(2, 3, 3, dtype=torch.float64))
    h = 1e-6
    quotient = (linalg.cholesky(x + h * u) - linalg.cholesky(x - h * u)) / (2 * h)
    torch.testing.assert_close(linalg.cholesky_frechet(linalg.cholesky(x), u), quotient, rtol=1e-7, atol=1e-8)


def test_a_bad_matrix_spoils_only_itself() -> None:
    x = positive(5, n=3)
    good = linalg.cholesky(x)
    x[1, 0, 0] = torch.nan
    x[2] = -torch.eye(3)
    x[4, 2, 2] = torch.nan
    y = linalg.cholesky(x)
    assert torch.isnan(y[[1, 2, 4]]).all(-1).all(-1).all()
    torch.testing.assert_close(y[[0, 3]], good[[0, 3]])


def test_float32_is_factored_in_float64_on_the_cpu() -> None:
    x = positive(3, n=4).float()
    factor = linalg.cholesky(x)
    assert factor.dtype == torch.float32
    torch.testing.assert_close(factor, torch.linalg.cholesky(linalg.symmetrize(x.double())).float())


def test_transforms() -> None:
    x = positive(3, n=3)
    torch.testing.assert_close(torch.func.vmap(linalg.cholesky)(x), linalg.cholesky(x))
    jacobian = torch.func.vmap(torch.func.jacrev(linalg.cholesky))(x)
    assert jacobian.shape == (3, 3, 3, 3, 3)


@pytest.mark.slow
def test_compile_fullgraph() -> None:
    x = positive(3, n=3).requires_grad_()
    compiled = torch.compile(linalg.log_cholesky, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), linalg.log_cholesky(x))
    torch.autograd.grad(compiled(x).sum(), x)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 2), (1, 0), (2, 1)])
def test_a_matrix_that_is_not_finite_is_nan_alone(bad: float, place: tuple[int, int]) -> None:
    """An infinite first entry sets no error code, and rows divided by its root come out finite."""
    x = 2 * torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    x[1][place] = x[1][place[::-1]] = bad
    x.requires_grad_()
    for function in (linalg.cholesky, linalg.log_cholesky):
        y = function(x)
        assert y[1].isnan().any()
        assert y[::2].isfinite().all()
        (gradient,) = torch.autograd.grad(y[::2].sum(), x)
        assert gradient[::2].isfinite().all()
    assert linalg.cholesky(x)[1].isnan().all()
