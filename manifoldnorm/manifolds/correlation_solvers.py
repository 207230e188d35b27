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
from manifoldnorm.linalg.triangular import gauss_legendre
from manifoldnorm.manifolds.checks import warn_not_converged

_MAX_STEPS = 60
_JACOBIAN_NODES = 6
_REFINEMENTS = 5


class _Trial(NamedTuple):
    """What is known at a trial point, per element: a merit to lower, whether it is solved, and the next step."""

    merit: Tensor
    residual: Tensor
    tolerance: Tensor
    step: Tensor
    carried: tuple[Tensor, ...] = ()


def _newton(
    unknown: Tensor, evaluate: Callable[[Tensor, Tensor | None], _Trial], solves: str
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Iterate unknown + step, shape (B, n); a step that does not lower the merit is quartered and tried again.

    Returns the best unknowns and what their trials carried. `evaluate` gets the unknowns of the elements that have not
    converged yet, and their indices (None for all).
    """
    if unknown.shape[0] == 0:
        return unknown, evaluate(unknown, None).carried
    rows: Tensor | None = None
    at, best = unknown, evaluate(unknown, None)
    solution: list[Tensor] = []
    improved = torch.ones_like(best.merit, dtype=torch.bool)
    for _ in range(_MAX_STEPS):
        going = _unfinished(best, improved)
        none_left, some_done = torch.stack((~going.any(), ~going.all())).tolist()
        if none_left:
            return _finish(solution, rows, at, best)
        if some_done:
            _store(solution, rows, at, best)
            at, best = at[going], _select(best, going)
            rows = going.nonzero().squeeze(-1) if rows is None else rows[going]
        trial = at + best.step
        new = evaluate(trial, rows)
        improved = (new.merit < best.merit) | (new.residual <= 0.5 * best.residual)
        if bool(improved.all()):
            at, best = trial, new
        else:
            at = _where(improved, trial, at)
            best = _merge(improved, new, best._replace(step=best.step / 4))
    _warn(solves, rows, best, unknown.shape[0])
    return _finish(solution, rows, at, best)


def _unfinished(trial: _Trial, improved: Tensor) -> Tensor:
    """Tell which elements have not converged: not to the tolerance, and not to where rounding stalls them.

    An element that is not finite never improves; it must not keep the others waiting.
    """
    reached = trial.residual <= trial.tolerance
    stalled = ~improved & (trial.residual <= 30 * trial.tolerance)
    return ~(reached | stalled | torch.isnan(trial.residual))


def _store(solution: list[Tensor], rows: Tensor | None, at: Tensor, best: _Trial) -> None:
    """Write the present state of all running elements into the results."""
    values = (at, *best.carried)
    if not solution:
        solution.extend(value.clone() for value in values)
    else:
        for target, value in zip(solution, values):
            target[rows] = value


def _finish(solution: list[Tensor], rows: Tensor | None, at: Tensor, best: _Trial) -> tuple[Tensor, tuple[Tensor, ...]]:
    if rows is None:
        return at, best.carried
    _store(solution, rows, at, best)
    return solution[0], tuple(solution[1:])


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask[(...,) + (None,) * (a.ndim - 1)], a, b)


def _merge(mask: Tensor, a: _Trial, b: _Trial) -> _Trial:
    merit, residual, tolerance, step = (_where(mask, x, y) for x, y in zip(a[:4], b[:4]))
    carried = tuple(_where(mask, x, y) for x, y in zip(a.carried, b.carried))
    return _Trial(merit, residual, tolerance, step, carried)


def _select(trial: _Trial, mask: Tensor) -> _Trial:
    merit, residual, tolerance, step = (x[mask] for x in trial[:4])
    return _Trial(merit, residual, tolerance, step, tuple(x[mask] for x in trial.carried))


def _warn(solves: str, rows: Tensor | None, best: _Trial, count: int) -> None:
    """Name the first element whose residual is not within a thousand tolerances."""
    index = torch.arange(count, device=best.residual.device) if rows is None else rows
    residual = torch.zeros(count, dtype=best.residual.dtype, device=best.residual.device)
    failed = torch.zeros(count, dtype=torch.bool, device=best.residual.device)
    residual[index] = best.residual
    failed[index] = ~(best.residual <= 1e3 * best.tolerance)
    if bool(failed.any()):
        remedy = "the coordinates are too large for this dtype; check the conditioning of the data"
        warn_not_converged(solves, residual, failed, _MAX_STEPS, remedy)


# Off-log: the unit diagonal of an exponential.


class _Quadrature(NamedTuple):
    """Nodes s as a column, and twice the weights of the lower half of them."""

    nodes: Tensor
    weights: Tensor

    @classmethod
    def like(cls, values: Tensor) -> _Quadrature:
        """Make it in the dtype and on the device of `values`."""
        nodes, weights = gauss_legendre(_JACOBIAN_NODES)
        twice = [2 * w for w in weights[: _JACOBIAN_NODES // 2]]
        return cls(values.new_tensor(nodes)[:, None], values.new_tensor(twice)[:, None, None])


def _jacobian(values: Tensor, vectors: Tensor, quadrature: _Quadrature) -> Tensor:
    """Approximate d diag(exp(Y)) / d diag(Y) = int_0^1 C^s o C^(1-s) ds, C = exp(Y), by Gauss quadrature.

    Good to ten digits when the eigenvalues of Y spread over less than 4; as a preconditioner at any spread. For a batch
    (B, n) of eigenvalues.
    """
    count, half = _JACOBIAN_NODES, _JACOBIAN_NODES // 2
    n = values.shape[-1]
    vectors = vectors.contiguous()
    scaled = vectors.unsqueeze(1) * torch.exp(quadrature.nodes * values.unsqueeze(1)).unsqueeze(2)
    powers = torch.bmm(scaled.reshape(-1, count * n, n), vectors.mT).view(-1, count, n, n)
    return (quadrature.weights * powers[:, :half] * powers[:, half:].flip(1)).sum(1)


def _unit_diagonal(h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Solve log diag(exp(D + H)) = 0 for a batch (B, n, n); returns D and the eigendecomposition of D + H.

    The Newton step for the logarithm is exact where H vanishes, as is the start -log cosh |H_i| for n = 2.
    """
    quadrature = _Quadrature.like(h)
    epsilon = 16 * torch.finfo(h.dtype).eps

    def evaluate(d: Tensor, rows: Tensor | None) -> _Trial:
        y = h.clone() if rows is None else h[rows]
        y.diagonal(dim1=-2, dim2=-1).add_(d)
        values, vectors = torch.linalg.eigh(y)
        # Everything is divided by exp(largest), which cancels in the step.
        largest = values[:, -1:]
        shifted = values - largest
        diagonal = (vectors * vectors * torch.exp(shifted).unsqueeze(1)).sum(-1)
        log_diagonal = torch.log(diagonal) + largest
        factor, info = torch.linalg.cholesky_ex(_jacobian(shifted, vectors, quadrature))
        newton = torch.cholesky_solve((diagonal * log_diagonal).unsqueeze(-1), factor).squeeze(-1)
        # The fallback is the contraction of Archakov and Hansen.
        step = torch.where((info == 0).unsqueeze(-1), -newton, -log_diagonal)
        residual = log_diagonal.abs().amax(-1)
        tolerance = epsilon * (1 + torch.maximum(largest.squeeze(-1), -values[:, 0]))
        return _Trial(residual, residual, tolerance, step, (values, vectors))

    length = torch.linalg.vector_norm(h, dim=-1)
    start = math.log(2) - length - torch.log1p(torch.exp(-2 * length))
    return _newton(start, evaluate, "the off-log diagonal")


def _solve_unit_diagonal(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = h.shape[-1]
    flat = h.reshape(-1, n, n)
    finite = torch.isfinite(flat).flatten(1).all(-1) if flat.numel() else torch.ones(0, dtype=torch.bool)
    d, (values, vectors) = _unit_diagonal(torch.where(finite[:, None, None], flat, 0.0))
    values = _where(finite, values, torch.full_like(values, torch.nan))
    batch = h.shape[:-2]
    # Contiguous, as the operator's description for compilers says.
    return d.reshape(*batch, n), values.reshape(*batch, n), vectors.contiguous().reshape(*batch, n, n)


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
    d, values, vectors = _unit_diagonal_op(h.detach())
    d = _Diagonal.apply(h, d, values, vectors)
    return h + torch.diag_embed(d), Eigendecomposition(values, vectors)


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
        shifted = values - largest
        n = values.shape[-1]
        jacobian = _jacobian(shifted.reshape(-1, n), vectors.reshape(-1, n, n), _Quadrature.like(shifted))
        factor = torch.linalg.cholesky_ex(jacobian.reshape(vectors.shape)).L
        differences = Exp().first(shifted.unsqueeze(-1), shifted.unsqueeze(-2))

        def operator(v: Tensor) -> Tensor:
            inner = differences * (vectors.mT @ (v.unsqueeze(-1) * vectors))
            return ((vectors @ inner) * vectors).sum(-1)

        return _preconditioned_conjugate_gradients(operator, factor, right) * torch.exp(-largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _InverseJacobian.apply(gradient, *ctx.saved_tensors), None, None


def _preconditioned_conjugate_gradients(operator: Callable[[Tensor], Tensor], factor: Tensor, right: Tensor) -> Tensor:
    """Solve operator(q) = right in a fixed number of steps; `factor` is the Cholesky factor of an approximation."""

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

    The Newton step of x^T C x / 2 - sum log x, a self-concordant convex function, taken in log x, where it converges
    in fewer steps and stays positive. No entry of x changes by more than a factor e^2 in a step: that takes about half
    the steps of damping by the decrement, and what does not lower the function is tried again by `_newton`.
    """

    def evaluate(u: Tensor, rows: Tensor | None) -> _Trial:
        x = torch.exp(u)
        scaled = x.unsqueeze(-1) * (c if rows is None else c[rows]) * x.unsqueeze(-2)
        sums = scaled.sum(-1)
        excess = sums - 1
        scaled.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = torch.linalg.cholesky_ex(scaled).L
        newton = torch.cholesky_solve(excess.unsqueeze(-1), factor).squeeze(-1)
        decrement = (excess * newton).sum(-1, keepdim=True).clamp_min(0).sqrt()
        step = -newton * (2 / newton.abs().amax(-1, keepdim=True)).clamp_max(1)
        merit = 0.5 * sums.sum(-1) - u.sum(-1)
        # The next decrement is of the order of this one's square, so the step that follows a small one is the last.
        return _Trial(merit, decrement.squeeze(-1), tolerance.expand_as(merit), step, (x * torch.exp(step),))

    n = c.shape[-1]
    tolerance = torch.full((), 0.5 * torch.finfo(c.dtype).eps ** 0.5, dtype=c.dtype, device=c.device)
    # Smaller where rows sum to more, up to e, and scaled for the least x^T C x / 2 - sum log x.
    direction = -torch.tanh(0.5 * (c.sum(-1, keepdim=True) - 1))
    x = torch.exp(direction)
    start = direction.squeeze(-1) + 0.5 * (math.log(n) - torch.log((x.mT @ c @ x).squeeze(-1)))
    return _newton(start, evaluate, "the log-scaled diagonal")[1][0]


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
