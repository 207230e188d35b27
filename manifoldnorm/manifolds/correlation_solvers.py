"""The two scalings that correlation geometries need: a diagonal added to a logarithm, and one multiplied on both sides.

Off-log: for a hollow symmetric H there is a unique diagonal D with diag(exp(D + H)) = 1 (Archakov and Hansen, 2021).
Log-scaled: for a correlation matrix C there is a unique x > 0 with row sums of diag(x) C diag(x) equal to one (Marshall
and Olkin, 1968). Both are solved by safeguarded Newton steps, element by element: an element that has converged is
frozen and leaves the iteration. Gradients come from the implicit function theorem, with no eigendecomposition of their
own. A `ConvergenceWarning` names an element that did not converge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import Eigendecomposition, Exp, frechet, symmetrize
from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.linalg.triangular import gauss_legendre
from manifoldnorm.manifolds.batched_newton import Trial, batched_newton

_JACOBIAN_NODES = 6
_REFINEMENTS = 5


# Off-log: the unit diagonal of an exponential.


class _Quadrature(NamedTuple):
    """Nodes s of the lower half, then 1 - s for each of them, as a row; and twice the weights of the lower half."""

    nodes: Tensor
    weights: Tensor

    @classmethod
    def like(cls, values: Tensor) -> _Quadrature:
        """Make it in the dtype and on the device of `values`."""
        nodes, weights = gauss_legendre(_JACOBIAN_NODES)
        half = _JACOBIAN_NODES // 2
        mirrored = [*nodes[:half], *(1 - s for s in nodes[:half])]
        return cls(values.new_tensor(mirrored), values.new_tensor([2 * w for w in weights[:half]] + [1.0] * half))


def _jacobian(values: Tensor, rows: Tensor, quadrature: _Quadrature) -> Tensor:
    """Approximate d diag(exp(Y)) / d diag(Y) = int_0^1 C^s o C^(1-s) ds, C = exp(Y), by Gauss quadrature.

    Good to ten digits when the eigenvalues of Y spread over less than 4; as a preconditioner at any spread. For a batch
    (B, n) of eigenvalues, with the eigenvectors in rows.
    """
    half, n = _JACOBIAN_NODES // 2, values.shape[-1]
    powers = torch.exp(values.unsqueeze(-1) * quadrature.nodes) * quadrature.weights
    scaled = powers.unsqueeze(-1) * rows.unsqueeze(-2)
    both = torch.bmm(rows.mT, scaled.flatten(-2)).view(-1, n, 2 * half, n)
    return (both[:, :, :half] * both[:, :, half:]).sum(2)


def _unit_diagonal(h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Solve log diag(exp(D + H)) = 0 for a batch (B, n, n); returns D and, among others, the eigenvalues of D + H.

    The Newton step for the logarithm is exact where H vanishes, as is the start -log cosh |H_i| for n = 2.
    """
    quadrature = _Quadrature.like(h)
    epsilon = 16 * torch.finfo(h.dtype).eps

    def evaluate(d: Tensor, rows: Tensor | None) -> Trial:
        y = h.clone() if rows is None else h[rows]
        y.diagonal(dim1=-2, dim2=-1).add_(d)
        values, vectors = torch.linalg.eigh(y)
        # Everything is divided by exp(largest), which cancels in the step.
        largest = values[:, -1:]
        diagonal = (vectors * vectors * torch.exp(values - largest).unsqueeze(1)).sum(-1)
        log_diagonal = torch.log(diagonal) + largest
        residual = log_diagonal.abs().amax(-1)
        tolerance = epsilon * (1 + torch.maximum(values[:, -1], -values[:, 0]))
        # LAPACK writes columns, so that the transpose is row-major.
        return Trial(residual, residual, tolerance, (values, vectors.mT, diagonal, log_diagonal))

    def propose(trial: Trial) -> Tensor:
        values, rows, diagonal, log_diagonal = trial.carried
        factor, info = torch.linalg.cholesky_ex(_jacobian(values - values[:, -1:], rows, quadrature))
        newton = torch.cholesky_solve((diagonal * log_diagonal).unsqueeze(-1), factor).squeeze(-1)
        # The fallback is the contraction of Archakov and Hansen.
        return torch.where((info == 0).unsqueeze(-1), newton, log_diagonal).neg_()

    length = torch.linalg.vector_norm(h, dim=-1)
    start = math.log(2) - length - torch.log1p(torch.exp(-2 * length))
    return batched_newton(start, evaluate, propose, "the off-log diagonal")


def _solve_unit_diagonal(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return D, the eigenvalues of D + H, and its eigenvectors in rows."""
    n = h.shape[-1]
    flat = h.reshape(-1, n, n)
    finite = torch.isfinite(flat.sum((-1, -2)))
    d, (values, rows, *_) = _unit_diagonal(torch.where(finite[:, None, None], flat, 0.0))
    values = values.masked_fill(~finite.unsqueeze(-1), torch.nan)
    batch = h.shape[:-2]
    # Contiguous, as the operator's description for compilers says.
    return d.reshape(*batch, n), values.reshape(*batch, n), rows.contiguous().reshape(*batch, n, n)


# The iterations ask tensors whether to stop. As operators they are opaque to torch.compile and torch.func.vmap.
_unit_diagonal_op = torch.library.custom_op(
    "manifoldnorm::unit_diagonal_exponential",
    _solve_unit_diagonal,
    mutates_args=(),
    schema="(Tensor h) -> (Tensor, Tensor, Tensor)",
)


@_unit_diagonal_op.register_fake
def _(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return h.new_empty(h.shape[:-1]), h.new_empty(h.shape[:-1]), h.new_empty(h.shape)


@_unit_diagonal_op.register_vmap
def _(info: Any, in_dims: tuple[int | None], h: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return _unit_diagonal_op(h.movedim(in_dims[0] or 0, 0)), (0, 0, 0)


def unit_diagonal_logarithm(h: Tensor) -> tuple[Tensor, Eigendecomposition]:
    """Add to hollow symmetric matrices the diagonal that makes the diagonal of their exponential one.

    Parameters
    ----------
    h : Tensor
        Shape (..., n, n), symmetric with zero diagonal, float32 or float64.

    Returns
    -------
    logarithm : Tensor
        D(h) + h, differentiable twice.
    eigen : Eigendecomposition
        Of the logarithm.

    Warns
    -----
    ConvergenceWarning
        Where the iteration stopped early; the result is the best iterate.

    Examples
    --------
    >>> y, eigen = unit_diagonal_logarithm(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> torch.linalg.matrix_exp(y).diagonal().round(decimals=3)
    tensor([1., 1.])
    """
    d, values, rows = _unit_diagonal_op(h.detach())
    d = _Diagonal.apply(h, d, values, rows.mT)
    return h + torch.diag_embed(d), Eigendecomposition(values, rows.mT)


class _Diagonal(torch.autograd.Function):
    """Attach the derivative of D(H): J dd = -diag(Dexp_Y[dH]), Y = D + H, J symmetric positive definite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, d: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        return d.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, _, values, vectors = inputs
        ctx.save_for_backward(h, output, values, vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        h, d, values, vectors = ctx.saved_tensors
        eigen = Eigendecomposition(values, vectors)
        y = h + torch.diag_embed(d)
        q = solve_diagonal_jacobian(y, gradient, eigen)
        pulled = -frechet(y, torch.diag_embed(q), Exp(), eigen=eigen)
        return hollow(pulled), None, None, None


def solve_diagonal_jacobian(y: Tensor, right: Tensor, eigen: Eigendecomposition) -> Tensor:
    """Solve diag(Dexp_y[diag(q)]) = right for q, differentiably in `y` and `right`.

    One refinement with the operator itself attaches the derivative to the solution.
    """
    if not torch.is_grad_enabled():
        return _InverseJacobian.apply(right, *eigen)
    q = _InverseJacobian.apply(right.detach(), *eigen).detach()
    image = frechet(y, torch.diag_embed(q), Exp(), eigen=eigen).diagonal(dim1=-2, dim2=-1)
    result: Tensor = q + _InverseJacobian.apply(right - image, *eigen)
    return result


class _InverseJacobian(torch.autograd.Function):
    """Apply the inverse of v -> diag(Dexp_Y[diag(v)]), self-adjoint, as a constant linear map."""

    generate_vmap_rule = True

    @staticmethod
    def forward(right: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        # In units of the largest eigenvalue of exp(Y) nothing overflows.
        largest = values.amax(-1, keepdim=True)
        shifted, rows = values - largest, vectors.mT
        n = values.shape[-1]
        jacobian = _jacobian(shifted.reshape(-1, n), rows.reshape(-1, n, n), _Quadrature.like(shifted))
        factor = torch.linalg.cholesky_ex(jacobian.reshape(vectors.shape)).L
        differences = Exp().first(shifted.unsqueeze(-1), shifted.unsqueeze(-2))

        def operator(v: Tensor) -> Tensor:
            inner = differences * ((rows * v.unsqueeze(-2)) @ rows.mT)
            return ((inner @ rows) * rows).sum(-2)

        return _preconditioned_conjugate_gradients(operator, factor, right) * torch.exp(-largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _InverseJacobian.apply(gradient, *ctx.saved_tensors), None, None


def _preconditioned_conjugate_gradients(operator: Callable[[Tensor], Tensor], factor: Tensor, right: Tensor) -> Tensor:
    """Solve operator(q) = right; `factor` is the Cholesky factor of an approximation.

    In a fixed number of steps, or fewer where looking at the residual costs no synchronisation.
    """
    goal = 4 * torch.finfo(right.dtype).eps * torch.linalg.vector_norm(right, dim=-1)

    def precondition(v: Tensor) -> Tensor:
        return torch.cholesky_solve(v.unsqueeze(-1), factor).squeeze(-1)

    def ratio(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b > 0, a / torch.where(b > 0, b, torch.ones_like(b)), 0.0)

    q, residual = torch.zeros_like(right), right
    direction = precondition(residual)
    square = (residual * direction).sum(-1, keepdim=True)
    for _ in range(_REFINEMENTS):
        image = operator(direction)
        length = ratio(square, (direction * image).sum(-1, keepdim=True))
        q = q + length * direction
        residual = residual - length * image
        if may_look_at(residual) and bool((torch.linalg.vector_norm(residual, dim=-1) <= goal).all()):
            break
        improved = precondition(residual)
        previous, square = square, (residual * improved).sum(-1, keepdim=True)
        direction = improved + ratio(square, previous) * direction
    return q


def hollow(x: Tensor) -> Tensor:
    """Return matrices with their diagonal set to zero."""
    return x * torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device).fill_diagonal_(0)


# Log-scaled: unit row sums.


def _unit_row_sums(c: Tensor) -> Tensor:
    """Solve x o (C x) = 1 for a batch (B, n, n).

    The Newton step of x^T C x / 2 - sum log x, a self-concordant convex function. In log x, with no entry changing by
    more than a factor e^2, it needs about half the steps of the damped one in x, which always lowers the function.
    Where C is nearly singular, and x therefore large, an exponential would leave the directions in which x^T C x is
    small: then, or where the first kind of step has not lowered the function, the damped one is taken.
    """

    def evaluate(u: Tensor, rows: Tensor | None) -> Trial:
        x = torch.exp(u)
        scaled = x.unsqueeze(-1) * (c if rows is None else c[rows]) * x.unsqueeze(-2)
        sums = scaled.sum(-1)
        excess = sums - 1
        scaled.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = torch.linalg.cholesky_ex(scaled).L
        newton = torch.cholesky_solve(excess.unsqueeze(-1), factor).squeeze(-1)
        decrement = (excess * newton).sum(-1).clamp_min(0).sqrt()
        merit = (0.5 * sums - u).sum(-1)
        # The next decrement is of the order of this one's square, so the step that follows a small one is the last.
        return Trial(merit, decrement, tolerance.expand_as(merit), (newton, u - newton, x.amax(-1, keepdim=True)))

    def damped(trial: Trial, _: Tensor) -> Tensor:
        newton, decrement = trial.carried[0], trial.residual.unsqueeze(-1)
        # The undamped step is sure to converge from a decrement below 0.38 on.
        return torch.log1p(-newton / torch.where(decrement < 0.3, 1.0, 1 + decrement))

    def propose(trial: Trial) -> Tensor:
        newton, _, largest = trial.carried
        length = newton.abs().amax(-1, keepdim=True)
        straight = length * largest > 10
        exponential = -newton * (2 / length).clamp_max(1)
        return torch.where(straight, damped(trial, newton), exponential) if bool(straight.any()) else exponential

    n = c.shape[-1]
    tolerance = torch.full((), 0.5 * torch.finfo(c.dtype).eps ** 0.5, dtype=c.dtype, device=c.device)
    # Smaller where rows sum to more, up to e, and scaled for the least x^T C x / 2 - sum log x.
    direction = -torch.tanh(0.5 * (c.sum(-1, keepdim=True) - 1))
    x = torch.exp(direction)
    start = direction.squeeze(-1) + 0.5 * (math.log(n) - torch.log((x.mT @ c @ x).squeeze(-1)))
    return torch.exp(batched_newton(start, evaluate, propose, "the log-scaled diagonal", damped)[1][1])


def _solve_unit_row_sums(c: Tensor) -> Tensor:
    n = c.shape[-1]
    flat = c.reshape(-1, n, n)
    return _unit_row_sums(flat).reshape(*c.shape[:-2], n)


_unit_row_sums_op = torch.library.custom_op(
    "manifoldnorm::unit_row_sums", _solve_unit_row_sums, mutates_args=(), schema="(Tensor c) -> Tensor"
)


@_unit_row_sums_op.register_fake
def _(c: Tensor) -> Tensor:
    return c.new_empty(c.shape[:-1])


@_unit_row_sums_op.register_vmap
def _(info: Any, in_dims: tuple[int | None], c: Tensor) -> tuple[Tensor, int]:
    return _unit_row_sums_op(c.movedim(in_dims[0] or 0, 0)), 0


def unit_row_sum_scaling(c: Tensor) -> Tensor:
    """Find the positive x for which every row of diag(x) c diag(x) sums to one.

    Parameters
    ----------
    c : Tensor
        Shape (..., n, n), symmetric positive definite, float32 or float64.

    Returns
    -------
    Tensor
        Shape (..., n), differentiable twice.

    Warns
    -----
    ConvergenceWarning
        Where the iteration stopped early; the result is the best iterate.

    Examples
    --------
    >>> unit_row_sum_scaling(torch.tensor([[1.0, -0.75], [-0.75, 1.0]]))
    tensor([2., 2.])
    """
    result: Tensor = _Scaling.apply(c, _unit_row_sums_op(c.detach()))
    return result


class _Scaling(torch.autograd.Function):
    """Attach the derivative of x(C): with S = X C X and dx = X e, (I + S) e = -X dC x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        c, x = ctx.saved_tensors
        identity = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
        matrix = identity + x.unsqueeze(-1) * c * x.unsqueeze(-2)
        v = torch.cholesky_solve((x * gradient).unsqueeze(-1), torch.linalg.cholesky_ex(matrix).L).squeeze(-1)
        return -symmetrize((x * v).unsqueeze(-1) * x.unsqueeze(-2)), None
