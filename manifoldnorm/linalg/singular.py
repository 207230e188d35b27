"""Odd functions of singular values with derivatives that are right at zero, at rank deficiency and at repeated values.

For a complex or real A = U diag(s) V^H of shape (p, q) and an odd h, F(A) = U diag(h(s)) V^H. With E = U^H G V its
derivative along G is U (h[s_i, s_j] herm(E) + h[s_i, -s_j] skew(E)) V^H, and h[s_i, 0] acts on the part of G outside
the square block; h[., .] are divided differences. Nothing in it divides by a vanishing gap or a vanishing singular
value, unlike the derivatives of U and V. It is the Daleckii-Krein formula for the Hermitian dilation
[[0, A], [A^H, 0]], which also gives the second derivative.

First and second derivatives are supported, `torch.func.vmap` and `torch.func` transforms; there is no forward-mode
rule. A matrix that is not finite gives NaN in its own place of the batch only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.odd_functions import AsinhRatio, Atanh, ClampMagnitude, Sign, Tanh
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.spectral_functions import SpectralFunction
from manifoldnorm.linalg.symmetric import _SecondFrechet, eigh

# On the CPU the closed form costs some sixty small operations, which pays from about this many 2 x 2 matrices.
_CLOSED_FORM_BATCH = 256


class SingularDecomposition(NamedTuple):
    """A = left diag(values) right^H with left (..., p, k), values (..., k) >= 0, right (..., q, k), k = min(p, q)."""

    left: Tensor
    values: Tensor
    right: Tensor

    def scaled(self, factor: Tensor) -> SingularDecomposition:
        """Decompose the matrix times the nonnegative `factor`, of the batch's shape."""
        return SingularDecomposition(self.left, self.values * factor.to(self.values.dtype).unsqueeze(-1), self.right)

    def map(self, function: SpectralFunction) -> SingularDecomposition:
        """Decompose the odd function of the matrix (for a function that is nonnegative on the values)."""
        return SingularDecomposition(self.left, function.value(self.values), self.right)


def _check_matrix(x: Tensor, name: str = "x") -> None:
    if x.ndim < 2:
        raise ValueError(f"{name} must hold matrices of shape (..., p, q), got shape {tuple(x.shape)}")
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"{name} must be floating point or complex, got {x.dtype}; convert it first")


def _finite(x: Tensor) -> Tensor:
    """Tell which matrices are finite: zero times an infinity or NaN is NaN."""
    return (x * 0).sum((-2, -1)) == 0


def _vector_svd(x: Tensor) -> SingularDecomposition:
    """Decompose columns: the norm, the unit vector (the first basis vector for zero), and 1."""
    size = x.abs().amax(-2, keepdim=True)
    usable = size > 0
    scaled = x / torch.where(usable, size, torch.ones_like(size))
    norm = torch.linalg.vector_norm(scaled, dim=-2, keepdim=True)
    basis = torch.zeros_like(x)
    basis[..., 0, :] = 1
    unit = torch.where(usable, scaled / torch.where(usable, norm, torch.ones_like(norm)), basis)
    right = torch.ones(*x.shape[:-2], 1, 1, dtype=x.dtype, device=x.device)
    return SingularDecomposition(unit, (norm * size).squeeze(-1), right)


def _svd_2x2(x: Tensor) -> SingularDecomposition:
    """Decompose 2 x 2 matrices: a rotation makes them triangular, phases make them real, two angles diagonalise.

    The larger column goes first, so nothing is divided by a small number; the smaller singular value is the determinant
    over the larger one.
    """
    columns = torch.linalg.vector_norm(x, dim=-2)
    f = columns.amax(-1)
    tiny = torch.finfo(x.dtype).tiny
    swap = (columns[..., 0] < f)[..., None]
    x0, x1 = x.unbind(-1)
    a, c = (torch.where(swap, x1, x0) / f.clamp_min(tiny)[..., None]).unbind(-1)
    b, d = torch.where(swap, x0, x1).unbind(-1)
    a = torch.where(f == 0, 1.0, a)
    # [a, -c*; c, a*]^H [first, second] = [f, g; 0, h] = diag(1, turn) [f, |g|; 0, |h|] diag(1, phase of g).
    a_bar, c_bar = a.conj().resolve_conj(), c.conj().resolve_conj()
    (g, phase), (h, turn) = _polar(a_bar * b + c_bar * d), _polar(a * d - c * b)
    back = phase.conj().resolve_conj()
    turn = turn * back
    plus, minus = f + h, f - h
    large = (torch.hypot(plus, g) + torch.hypot(minus, g)) / 2
    small = torch.minimum(f * h / large.clamp_min(tiny), large)
    outer, inner = torch.atan2(-g, plus), torch.atan2(g, minus)
    angles = torch.stack((outer + inner, outer - inner)) / 2
    cosines, sines = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    cosine, sine = cosines[0], sines[0]
    m, n = c_bar * turn, a_bar * turn
    left = torch.stack(
        (a * cosine - m * sine, -a * sine - m * cosine, c * cosine + n * sine, n * cosine - c * sine), -1
    )
    top, bottom = torch.stack((cosines[1], sines[1]), -1), torch.stack((-sines[1] * back, cosines[1] * back), -1)
    right = torch.stack((torch.where(swap, bottom, top), torch.where(swap, top, bottom)), -2)
    return SingularDecomposition(left.unflatten(-1, (2, 2)), torch.stack((large, small), -1), right)


def _polar(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return modulus and phase, the phase of zero being one."""
    modulus = x.abs()
    return modulus, torch.where(modulus == 0, 1.0, torch.sgn(x))


def svd(x: Tensor) -> SingularDecomposition:
    """Decompose matrices; one that is not finite gets NaN singular values, alone in its batch.

    The result carries no gradient: functions of the matrix are differentiated by `odd`, not through singular vectors.

    Parameters
    ----------
    x : Tensor
        Shape (..., p, q). On the CPU float32 (complex64) is decomposed, and returned, in float64 (complex128).

    Returns
    -------
    SingularDecomposition
        `left`, `values` in descending order, `right`.

    Examples
    --------
    >>> svd(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).values
    tensor([4., 3.], dtype=torch.float64)
    """
    _check_matrix(x)
    with without_autocast(x):
        x = x.detach().to(working_dtype(x))
        finite = _finite(x)
        safe = torch.where(finite[..., None, None], x, 0.0)
        if x.shape[-1] == 1:
            left, values, right = _vector_svd(safe)
        elif x.shape[-2] == 1:
            right, values, left = _vector_svd(safe.mH)
        elif x.shape[-2:] == (2, 2) and (x.is_cuda or x.numel() >= 4 * _CLOSED_FORM_BATCH):
            left, values, right = _svd_2x2(safe)
        else:
            left, values, adjoint = torch.linalg.svd(safe, full_matrices=False)
            right = adjoint.mH
        return SingularDecomposition(left, torch.where(finite[..., None], values, torch.nan), right)


def svdvals(x: Tensor) -> Tensor:
    """Singular values in descending order, without gradient; NaN for a matrix that is not finite.

    Examples
    --------
    >>> svdvals(torch.tensor([[3.0, 0.0], [0.0, -4.0]], dtype=torch.float64))
    tensor([4., 3.], dtype=torch.float64)
    """
    _check_matrix(x)
    if max(x.shape[-2:]) <= 2 or 1 in x.shape[-2:]:
        return svd(x).values
    with without_autocast(x):
        x = x.detach().to(working_dtype(x))
        finite = _finite(x)
        values = torch.linalg.svdvals(torch.where(finite[..., None, None], x, 0.0))
        return torch.where(finite[..., None], values, torch.nan)


def _dilation(x: Tensor) -> Tensor:
    """Return the Hermitian matrices [[0, x], [x^H, 0]]."""
    p, q = x.shape[-2:]
    top = torch.cat((x.new_zeros(*x.shape[:-2], p, p), x), dim=-1)
    bottom = torch.cat((x.mH, x.new_zeros(*x.shape[:-2], q, q)), dim=-1)
    return torch.cat((top, bottom), dim=-2)


class _Odd(torch.autograd.Function):
    """F(A) from a decomposition of A; the derivative is self-adjoint, so it is the gradient too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, left: Tensor, values: Tensor, right: Tensor, function: SpectralFunction) -> Tensor:
        return ((left * function.value(values).unsqueeze(-2)) @ right.mH).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, left, values, right, ctx.function = inputs
        ctx.save_for_backward(x, left, values, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, left, values, right = ctx.saved_tensors
        return _OddDerivative.apply(x, left, values, right, gradient, ctx.function), None, None, None, None


class _OddDerivative(torch.autograd.Function):
    """DF(A)[G]; linear and self-adjoint in G, and differentiable once more in A."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, left: Tensor, values: Tensor, right: Tensor, u: Tensor, function: SpectralFunction
    ) -> Tensor:
        with without_autocast(u):
            w = u.to(left.dtype)
            rows, columns = left.mH @ w, w @ right
            inner = rows @ right
            a, b = values.unsqueeze(-1), values.unsqueeze(-2)
            same, opposite = function.first(a, b), function.first(a, -b)
            middle = ((same + opposite) * inner + (same - opposite) * inner.mH) / 2
            result = left @ middle @ right.mH
            outside = function.first(values, torch.zeros_like(values))
            p, q = x.shape[-2:]
            if q > p:
                result = result + left @ (outside.unsqueeze(-1) * (rows - inner @ right.mH))
            if p > q:
                result = result + (columns - left @ inner) * outside.unsqueeze(-2) @ right.mH
            return result.to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, left, values, right, u, ctx.function = inputs
        ctx.save_for_backward(x, left, values, right, u)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, left, values, right, u = ctx.saved_tensors
        grad_x = grad_u = None
        if ctx.needs_input_grad[0]:
            p = x.shape[-2]
            dilated = _dilation(x)
            eigen = eigh(dilated)
            second = _SecondFrechet.apply(dilated, *eigen, _dilation(u), _dilation(gradient), ctx.function)
            grad_x = second[..., :p, p:]
        if ctx.needs_input_grad[4]:
            grad_u = _OddDerivative.apply(x, left, values, right, gradient, ctx.function)
        return grad_x, None, None, None, grad_u, None


def odd(x: Tensor, function: SpectralFunction, *, decomposition: SingularDecomposition | None = None) -> Tensor:
    """Apply an odd scalar function to the singular values of matrices, keeping the singular vectors.

    Parameters
    ----------
    x : Tensor
        Shape (..., p, q), real or complex.
    function : SpectralFunction
        An odd function, such as `Tanh()`, with divided differences that hold for arguments of either sign.
    decomposition : SingularDecomposition, optional
        A decomposition of `x` that is known already, as from `svd(x)`; it must belong to `x`.

    Returns
    -------
    Tensor
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> x = torch.zeros(2, 2, dtype=torch.complex128, requires_grad=True)
    >>> odd(x, Tanh()).real.sum().backward()
    >>> x.grad.real
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    _check_matrix(x)
    left, values, right = svd(x) if decomposition is None else decomposition
    with without_autocast(x):
        result: Tensor = _Odd.apply(x, left, values, right, function)
    return result


def odd_frechet(
    x: Tensor, u: Tensor, function: SpectralFunction, *, decomposition: SingularDecomposition | None = None
) -> Tensor:
    """Compute the directional derivative at `x` along `u` of an odd function of singular values.

    Parameters
    ----------
    x, u : Tensor
        Shapes (..., p, q), broadcastable.
    function : SpectralFunction
        The odd function.
    decomposition : SingularDecomposition, optional
        A known decomposition of `x`.

    Examples
    --------
    >>> odd_frechet(torch.eye(2), torch.eye(2), Tanh())
    tensor([[0.4200, 0.0000],
            [0.0000, 0.4200]])
    """
    _check_matrix(x)
    _check_matrix(u, "u")
    left, values, right = svd(x) if decomposition is None else decomposition
    if x.shape != u.shape:
        shape = torch.broadcast_shapes(x.shape, u.shape)
        x, u = x.expand(shape), u.expand(shape)
        left, right = (m.expand(*shape[:-2], *m.shape[-2:]) for m in (left, right))
        values = values.expand(*shape[:-2], values.shape[-1])
    with without_autocast(x):
        result: Tensor = _OddDerivative.apply(x, left, values, right, u, function)
    return result


def tanhm(x: Tensor) -> Tensor:
    """U diag(tanh(s)) V^H of matrices U diag(s) V^H: the exponential map at the centre of a matrix ball.

    Examples
    --------
    >>> tanhm(torch.tensor([[1.0]]))
    tensor([[0.7616]])
    """
    return odd(x, Tanh())


def atanhm(x: Tensor) -> Tensor:
    """U diag(atanh(s)) V^H of matrices with singular values below one; NaN for the others.

    Examples
    --------
    >>> atanhm(torch.tensor([[0.5]]))
    tensor([[0.5493]])
    """
    return odd(x, Atanh())


__all__ = [
    "AsinhRatio",
    "Atanh",
    "ClampMagnitude",
    "Sign",
    "SingularDecomposition",
    "Tanh",
    "atanhm",
    "odd",
    "odd_frechet",
    "svd",
    "svdvals",
    "tanhm",
]
