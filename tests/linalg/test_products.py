"""Products of stacks agree with the plain ones, whichever shortcut they take."""

import pytest
import torch

from manifoldnorm.linalg.products import add_product, gram_matrix, matrix_inner, product, symmetric_part

BATCHES = [(), (1,), (3,), (2, 3), (9,)]


@pytest.mark.parametrize("batch", BATCHES)
def test_products(batch: tuple[int, ...]) -> None:
    a, b = torch.randn(*batch, 4, 3).double(), torch.randn(*batch, 3, 5).double()
    c = torch.randn(*batch, 4, 5).double()
    torch.testing.assert_close(product(a, b), a @ b)
    torch.testing.assert_close(add_product(c, a, b, beta=0.5, alpha=-2.0), 0.5 * c - 2 * (a @ b))
    torch.testing.assert_close(matrix_inner(c, c), (c * c).sum((-2, -1), keepdim=True))
    torch.testing.assert_close(add_product(c[..., :1, :], a, b), c[..., :1, :] + a @ b)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", [3, 128, 131])
def test_symmetric_results(batch: tuple[int, ...], size: int) -> None:
    x = torch.randn(*batch, size, size).double()
    torch.testing.assert_close(symmetric_part(x), (x + x.mT) / 2)
    rectangular = torch.randn(*batch, 7, size, dtype=torch.complex128)
    torch.testing.assert_close(gram_matrix(rectangular), rectangular.mH @ rectangular)


def test_gradients() -> None:
    x = torch.randn(1, 3, 130, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(130, 130, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weight * gram_matrix(x)).sum(), x)
    torch.testing.assert_close(gradient, x.detach() @ (weight + weight.mT))
    (gradient,) = torch.autograd.grad((weight * symmetric_part(gram_matrix(x))).sum(), x)
    torch.testing.assert_close(gradient, x.detach() @ (weight + weight.mT))
