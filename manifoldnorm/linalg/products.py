"""Matrix products in the form that is cheapest on stacks of a few large matrices."""

from __future__ import annotations

import torch
from torch import Tensor

# Below this size the blocks of a Gram matrix are too small to pay.
_SMALLEST_HALVED = 64
# The plain transposing copy of a matrix of this size is several times faster than that of a stack.
_SMALLEST_COPIED, _MOST_COPIED = 128, 8


def product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a @ b; a stack of one matrix goes through the plain product, which is faster than the batched one.

    Examples
    --------
    >>> product(torch.eye(2)[None], torch.ones(1, 2, 1)).shape
    torch.Size([1, 2, 1])
    """
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] == 1:
        return (a[0] @ b[0]).unsqueeze(0)
    return a @ b


def add_product(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Compute beta c + alpha a @ b, rounded once where all three are matrices or stacks of equal length.

    Examples
    --------
    >>> add_product(torch.ones(1, 1), torch.ones(1, 3), torch.ones(3, 1), alpha=-1.0)
    tensor([[-2.]])
    """
    if not c.ndim == a.ndim == b.ndim <= 3 or (c.ndim == 3 and not c.shape[0] == a.shape[0] == b.shape[0]):
        return beta * c + alpha * (a @ b)
    if c.ndim == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    if c.shape[0] == 1:
        return torch.addmm(c[0], a[0], b[0], beta=beta, alpha=alpha).unsqueeze(0)
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)


def matrix_inner(a: Tensor, b: Tensor) -> Tensor:
    """Sum of a * b over matrices, shape (..., 1, 1); without a temporary where there is only one matrix.

    Examples
    --------
    >>> matrix_inner(torch.ones(2, 3), torch.ones(2, 3))
    tensor([[6.]])
    """
    if a.shape != b.shape or a.shape[:-2].numel() != 1 or a.dtype.itemsize < 4:
        return (a * b).sum((-2, -1), keepdim=True)
    return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(*a.shape[:-2], 1, 1)


def symmetric_part(x: Tensor) -> Tensor:
    """Compute (X + X^T) / 2 of square matrices of shape (..., n, n), fast for a few large ones.

    Examples
    --------
    >>> symmetric_part(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[1., 1.],
            [1., 1.]])
    """
    transposed = x.mT
    if x.ndim == 3 and x.shape[0] <= _MOST_COPIED and x.shape[-1] >= _SMALLEST_COPIED:
        transposed = torch.stack([matrix.contiguous() for matrix in transposed.unbind()])
    return torch.add(x, transposed).mul_(0.5)


def gram_matrix(x: Tensor) -> Tensor:
    """Compute X^H X of matrices of shape (..., m, n), a quarter of it by symmetry where that pays.

    Examples
    --------
    >>> gram_matrix(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """
    half = x.shape[-1] // 2
    if half < _SMALLEST_HALVED:
        return product(x.mH, x)
    first, second = x[..., :half], x[..., half:]
    mixed = product(first.mH, second)
    top = torch.cat((product(first.mH, first), mixed), -1)
    bottom = torch.cat((mixed.mH, product(second.mH, second)), -1)
    return torch.cat((top, bottom), -2)
