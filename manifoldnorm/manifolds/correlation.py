"""Correlation matrices of full rank: four flat geometries, each with its Abelian group structure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Exp,
    Log,
    cholesky,
    clamp_eigenvalues,
    eigh,
    expm,
    frechet,
    half_lower,
    inverse_triangular,
    logm,
    symmetrize,
)
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.linalg.triangular import (
    exp_strictly_lower,
    exp_strictly_lower_frechet,
    log_unit_lower,
    log_unit_lower_frechet,
)
from manifoldnorm.manifolds.base import Manifold
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.correlation_solvers import (
    hollow,
    solve_diagonal_jacobian,
    unit_diagonal_logarithm,
    unit_row_sum_scaling,
)
from manifoldnorm.manifolds.pullback import Flat


def correlation_from_covariance(covariance: Tensor) -> Tensor:
    """Divide rows and columns of covariance matrices by the standard deviations.

    Parameters
    ----------
    covariance : Tensor
        Shape (..., n, n), symmetric with a positive diagonal.

    Returns
    -------
    Tensor
        Exactly symmetric with an exactly unit diagonal; NaN, for that matrix only, where the diagonal is not positive.

    Examples
    --------
    >>> correlation_from_covariance(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    scale = torch.rsqrt(_diagonal(covariance))
    # Symmetrised last: the products with the scales round differently on either side of the diagonal.
    return with_unit_diagonal(symmetrize(scale.unsqueeze(-1) * covariance * scale.unsqueeze(-2)))


def with_unit_diagonal(x: Tensor) -> Tensor:
    """Replace a diagonal that is one up to rounding; the derivative passes through."""
    return x + torch.diag_embed(1 - _diagonal(x).detach())


def _diagonal(x: Tensor) -> Tensor:
    return torch.diagonal(x, dim1=-2, dim2=-1)


class CorrelationPoints(Manifold):
    """What the correlation geometries share: the points, their tangent vectors (hollow symmetric), how to draw them."""

    name = "correlation matrices"
    ndim = 2

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two equal dimensions of at least 2."""
        super().check_event_shape(shape, name)
        if shape[-1] != shape[-2] or shape[-1] < 2:
            raise ValueError(
                f"{name} must hold square matrices, shape (..., n, n) with n >= 2 (the only 1 x 1 correlation matrix "
                f"is 1), got shape {tuple(shape)}"
            )

    def dimension(self, *event_shape: int) -> int:
        """Return n (n - 1) / 2."""
        n = event_shape[-1]
        return n * (n - 1) // 2

    def projx(self, x: Tensor) -> Tensor:
        """Symmetrise, raise eigenvalues below n eps times the norm to that floor, and scale the diagonal to one."""
        x = symmetrize(x)
        norm = torch.linalg.matrix_norm(x, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        floor = torch.finfo(x.dtype).eps * x.shape[-1]
        return correlation_from_covariance(clamp_eigenvalues(x / norm, floor))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Symmetrise and set the diagonal to zero."""
        return hollow(symmetrize(u)).expand(torch.broadcast_shapes(x.shape, u.shape))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return identity matrices of the given batch and event size."""
        self.check_event_shape(size, "size")
        return torch.eye(size[-1], dtype=dtype, device=device).expand(*size).clone()

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw the correlations of exponentials of symmetric Gaussian matrices of standard deviation 0.5."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return correlation_from_covariance(expm(0.5 * symmetrize(noise)))

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look for a matrix that is not symmetric or whose diagonal is not one."""
        if x.numel() == 0:
            return super().is_plausible(x)
        # The difference is antisymmetric: its largest entry is the largest magnitude.
        deviation = torch.maximum((x - x.mT).amax(), (_diagonal(x) - 1).abs().amax())
        return deviation <= default_tolerance(x.dtype)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        asymmetry = (x - x.mT).abs().flatten(-2).amax(-1)
        diagonal = (_diagonal(x) - 1).abs().amax(-1)
        smallest = eigh(x).values[..., 0]
        unit = "a matrix with unit diagonal (correlation_from_covariance makes one), but max |x_ii - 1|"
        return [
            Violation("symmetric, but max |x - x^T|", asymmetry),
            Violation(unit, diagonal),
            Violation("positive definite, but its smallest eigenvalue", smallest, failed=~(smallest > 0)),
        ]


class CholeskyCorrelation(CorrelationPoints, Flat):
    """What the two Cholesky geometries share: the unit lower triangular factor of C = D U U^T D."""

    def project_chart(self, z: Tensor) -> Tensor:
        """Keep the strictly lower triangle."""
        return torch.tril(z, -1)


def unit_cholesky(x: Tensor) -> Tensor:
    """Return the Cholesky factor with its rows divided by the diagonal: unit lower triangular."""
    with without_autocast(x):
        factor: Tensor = _UnitCholesky.apply(x.to(working_dtype(x)))[0]
    return factor.to(x.dtype)


class _UnitCholesky(torch.autograd.Function):
    """U and d of x = D U U^T D, D = diag(d), with L = D U.

    The differentials are dU = U P - diag(P) U and dd = d o diag(P), where P = half_lower(L^-1 dx L^-T).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        factor, info = torch.linalg.cholesky_ex(symmetrize(x))
        diagonal = torch.where((info == 0).unsqueeze(-1), _diagonal(factor), torch.nan)
        return factor / diagonal.unsqueeze(-1), diagonal

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, unit_gradient: Tensor, diagonal_gradient: Tensor) -> Tensor:
        unit, diagonal = ctx.saved_tensors
        product = unit * unit_gradient
        on_diagonal = 0.5 * (product.sum(-2) - product.sum(-1) + diagonal * diagonal_gradient)
        inner = torch.tril(unit.mT @ unit_gradient, -1) + torch.diag_embed(on_diagonal)
        factor = diagonal.unsqueeze(-1) * unit
        half = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
        return symmetrize(torch.linalg.solve_triangular(factor, half, upper=False, left=False))


def _unit_cholesky_frechet(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit factor U and its derivative U P - diag(P) U with P = half_lower(L^-1 u L^-T)."""
    factor = cholesky(x)
    inverse = inverse_triangular(factor)
    unit = factor / _diagonal(factor).unsqueeze(-1)
    inner = half_lower(inverse @ symmetrize(u) @ inverse.mT)
    return unit, torch.tril(unit @ inner - _diagonal(inner).unsqueeze(-1) * unit, -1)


def _unit_rows(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reciprocal row lengths, shape (..., n, 1), and the factor with rows of length one."""
    scale = torch.rsqrt((factor * factor).sum(-1, keepdim=True))
    return scale, scale * factor


def _correlation_of_factor(factor: Tensor) -> Tensor:
    with without_autocast(factor):
        result: Tensor = _CorrelationOfFactor.apply(factor)[0]
    return result


class _CorrelationOfFactor(torch.autograd.Function):
    """R R^T for the factor's rows divided by their lengths, R, with an exactly unit diagonal."""

    generate_vmap_rule = True

    @staticmethod
    def forward(factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, rows = _unit_rows(factor)
        # Symmetric, and one on the diagonal, up to rounding; made so exactly.
        result = symmetrize(rows @ rows.mT)
        result.diagonal(dim1=-2, dim2=-1).fill_(1)
        return result, scale, rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        factor, scale, rows = ctx.saved_tensors
        if torch.is_grad_enabled():
            scale, rows = _unit_rows(factor)
        moved = hollow(gradient + gradient.mT) @ rows
        return scale * (moved - (moved * rows).sum(-1, keepdim=True) * rows)


def _correlation_of_factor_frechet(factor: Tensor, u: Tensor) -> Tensor:
    scale, rows = _unit_rows(factor)
    moved = scale * u
    moved = moved - (moved * rows).sum(-1, keepdim=True) * rows
    product = moved @ rows.mT
    return hollow(product + product.mT)


class CorrelationEuclideanCholesky(CholeskyCorrelation):
    """The Euclidean-Cholesky metric: the unit lower triangular Cholesky factor is an isometry.

    Notes
    -----
    Thanwerdas and Pennec (2022). It needs no eigendecomposition, which makes it the cheapest of the four; distances
    depend on the order of the variables.

    Examples
    --------
    >>> metric = CorrelationEuclideanCholesky()
    >>> metric.dist(torch.eye(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor(0.7500)
    """

    name = "correlation matrices with the Euclidean-Cholesky metric"

    def deform(self, x: Tensor) -> Tensor:
        """Return the strictly lower part of the unit Cholesky factor."""
        return torch.tril(unit_cholesky(x), -1)

    def undeform(self, z: Tensor) -> Tensor:
        """Scale (I + z)(I + z)^T to unit diagonal."""
        return _correlation_of_factor(_unit_lower(z))

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return _unit_cholesky_frechet(x, u)[1]

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _correlation_of_factor_frechet(_unit_lower(z), torch.tril(w, -1))


def _unit_lower(z: Tensor) -> Tensor:
    return torch.tril(z, -1) + torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)


class CorrelationLogEuclideanCholesky(CholeskyCorrelation):
    """The log-Euclidean-Cholesky metric: the logarithm of the unit Cholesky factor is an isometry.

    Notes
    -----
    Thanwerdas and Pennec (2022). Distances depend on the order of the variables; the group inverse inverts the unit
    Cholesky factor.

    Examples
    --------
    >>> metric = CorrelationLogEuclideanCholesky()
    >>> metric.inv(torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor([[ 1.0000, -0.6000],
            [-0.6000,  1.0000]])
    """

    name = "correlation matrices with the log-Euclidean-Cholesky metric"

    def deform(self, x: Tensor) -> Tensor:
        """Return the logarithm of the unit Cholesky factor."""
        return log_unit_lower(unit_cholesky(x))

    def undeform(self, z: Tensor) -> Tensor:
        """Scale exp(z) exp(z)^T to unit diagonal."""
        return _correlation_of_factor(exp_strictly_lower(z))

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return log_unit_lower_frechet(*_unit_cholesky_frechet(x, u))

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _correlation_of_factor_frechet(exp_strictly_lower(z), exp_strictly_lower_frechet(z, w))


class CorrelationOffLog(CorrelationPoints, Flat):
    """The off-log metric: the logarithm without its diagonal is an isometry; invariant under permutations.

    Parameters
    ----------
    alpha, beta, gamma : float
        The squared norm of a hollow symmetric H is alpha tr H^2 + beta |H 1|^2 + gamma (1^T H 1)^2. Positive definite
        iff alpha > 0 (for n >= 4), 2 alpha + (n - 2) beta > 0 (for n >= 3), alpha + (n - 1)(beta + n gamma) > 0.

    Notes
    -----
    Archakov and Hansen (2021) for the parametrisation, Thanwerdas (2024) for the metrics. The inverse solves for a
    diagonal, see `manifoldnorm.manifolds.correlation_solvers`; where that fails there is a `ConvergenceWarning`.

    Examples
    --------
    >>> metric = CorrelationOffLog()
    >>> metric.dist(torch.eye(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor(0.9803)
    """

    name = "correlation matrices with the off-log metric"

    def __init__(self, alpha: float = 1.0, beta: float = 0.0, gamma: float = 0.0) -> None:
        self.alpha, self.beta, self.gamma = float(alpha), float(beta), float(gamma)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        n, a, b, c = shape[-1], self.alpha, self.beta, self.gamma
        _check_positive(n, 4, "alpha", a)
        _check_positive(n, 3, "2 alpha + (n - 2) beta", 2 * a + (n - 2) * b)
        _check_positive(n, 2, "alpha + (n - 1) (beta + n gamma)", a + (n - 1) * (b + n * c))

    def _coefficients(self, n: int) -> tuple[float, float, float]:
        """Return coefficients of the same norm with a positive first one: for n <= 3 the three terms are dependent."""
        if n == 2:
            return self.alpha + self.beta + 2 * self.gamma, 0.0, 0.0
        if n == 3:
            return self.alpha + self.beta / 2, 0.0, self.gamma + self.beta / 4
        return self.alpha, self.beta, self.gamma

    def deform(self, x: Tensor) -> Tensor:
        """Take the matrix logarithm and drop its diagonal."""
        return hollow(logm(x))

    def undeform(self, z: Tensor) -> Tensor:
        """Add the diagonal for which the exponential has a unit diagonal, and exponentiate."""
        logarithm, eigen = unit_diagonal_logarithm(self.project_chart(z.to(working_dtype(z))))
        return with_unit_diagonal(expm(logarithm, eigen=eigen)).to(z.dtype)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return hollow(frechet(x, u, Log()))

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        z, w = torch.broadcast_tensors(z, w)
        dtype = working_dtype(z)
        logarithm, eigen = unit_diagonal_logarithm(self.project_chart(z.to(dtype)))
        moved = frechet(logarithm, self.project_chart(w.to(dtype)), Exp(), eigen=eigen)
        shift = solve_diagonal_jacobian(logarithm, _diagonal(moved), eigen)
        return hollow(moved - frechet(logarithm, torch.diag_embed(shift), Exp(), eigen=eigen)).to(w.dtype)

    def project_chart(self, z: Tensor) -> Tensor:
        """Symmetrise and set the diagonal to zero."""
        return hollow(symmetrize(z))

    def chart_inner(self, z: Tensor, w: Tensor) -> Tensor:
        """Compute alpha tr(z w) + beta (z 1).(w 1) + gamma (1^T z 1)(1^T w 1)."""
        a, b, c = self._coefficients(z.shape[-1])
        product = a * frobenius_inner(z, w)
        if b:
            product = product + b * (z.sum(-1) * w.sum(-1)).sum(-1)
        return product + c * z.sum((-1, -2)) * w.sum((-1, -2)) if c else product

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product: its row sums and total solve scalar equations, then everything is explicit."""
        n = g.shape[-1]
        a, b, c = self._coefficients(n)
        g = self.project_chart(g)
        if not b and not c:
            return g / a
        total = g.sum((-1, -2)) / (a + (n - 1) * (b + n * c))
        sums = (g.sum(-1) - total.unsqueeze(-1) * (b / 2 + (n - 1) * c)) / (a + b * (n - 2) / 2)
        pairs = sums.unsqueeze(-1) + sums.unsqueeze(-2)
        return hollow(g - b / 2 * pairs - c * total[..., None, None]) / a


class CorrelationLogScaled(CorrelationPoints, Flat):
    """The log-scaled metric: the logarithm of the scaling with unit row sums is an isometry; permutation invariant.

    Parameters
    ----------
    alpha, delta, zeta : float
        The squared norm of a symmetric Y with zero row sums is alpha tr Y^2 + delta |diag Y|^2 + zeta (tr Y)^2.
        Positive definite iff alpha > 0 (for n >= 4), n alpha + (n - 2) delta > 0 (for n >= 3) and
        n alpha + (n - 1)(delta + n zeta) > 0.

    Notes
    -----
    Thanwerdas (2024). The group inverse of C is the correlation matrix of its inverse, whose entries are the negative
    partial correlations.

    Examples
    --------
    >>> metric = CorrelationLogScaled()
    >>> metric.inv(torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    tensor([[ 1.0000, -0.6000],
            [-0.6000,  1.0000]])
    """

    name = "correlation matrices with the log-scaled metric"

    def __init__(self, alpha: float = 1.0, delta: float = 0.0, zeta: float = 0.0) -> None:
        self.alpha, self.delta, self.zeta = float(alpha), float(delta), float(zeta)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        n, a, d, z = shape[-1], self.alpha, self.delta, self.zeta
        _check_positive(n, 4, "alpha", a)
        _check_positive(n, 3, "n alpha + (n - 2) delta", n * a + (n - 2) * d)
        _check_positive(n, 2, "n alpha + (n - 1) (delta + n zeta)", n * a + (n - 1) * (d + n * z))

    def _coefficients(self, n: int) -> tuple[float, float, float]:
        """Return coefficients of the same norm with a positive first one: for n <= 3 the three terms are dependent."""
        if n == 2:
            return self.alpha + self.delta / 2 + self.zeta, 0.0, 0.0
        if n == 3:
            return self.alpha + self.delta / 3, 0.0, self.zeta + self.delta / 6
        return self.alpha, self.delta, self.zeta

    def deform(self, x: Tensor) -> Tensor:
        """Scale to unit row sums and take the matrix logarithm."""
        c = symmetrize(x.to(working_dtype(x)))
        scale = unit_row_sum_scaling(c)
        return logm(scale.unsqueeze(-1) * c * scale.unsqueeze(-2)).to(x.dtype)

    def undeform(self, z: Tensor) -> Tensor:
        """Exponentiate and scale the diagonal to one."""
        return correlation_from_covariance(expm(z))

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        x, u = torch.broadcast_tensors(x, u)
        dtype = working_dtype(x)
        c, h = symmetrize(x.to(dtype)), symmetrize(u.to(dtype))
        scale = unit_row_sum_scaling(c)
        scaled, moved = (scale.unsqueeze(-1) * a * scale.unsqueeze(-2) for a in (c, h))
        identity = torch.eye(x.shape[-1], dtype=dtype, device=x.device)
        rate = -torch.linalg.solve(identity + scaled, moved.sum(-1))
        product = rate.unsqueeze(-1) * scaled
        return frechet(scaled, moved + product + product.mT, Log()).to(u.dtype)

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        z, w = torch.broadcast_tensors(z, w)
        eigen = eigh(z)
        covariance, moved = expm(z, eigen=eigen), frechet(z, w, Exp(), eigen=eigen)
        scale = torch.rsqrt(_diagonal(covariance))
        correlation, moved = (scale.unsqueeze(-1) * a * scale.unsqueeze(-2) for a in (covariance, moved))
        product = 0.5 * _diagonal(moved).unsqueeze(-1) * correlation
        return hollow(symmetrize(moved) - (product + product.mT))

    def project_chart(self, z: Tensor) -> Tensor:
        """Symmetrise and subtract the mean of every row and column."""
        z = symmetrize(z)
        rows = z.mean(-1, keepdim=True)
        return z - rows - rows.mT + rows.mean(-2, keepdim=True)

    def chart_inner(self, z: Tensor, w: Tensor) -> Tensor:
        """Compute alpha tr(z w) + delta diag(z).diag(w) + zeta tr z tr w."""
        a, d, t = self._coefficients(z.shape[-1])
        product = a * frobenius_inner(z, w)
        if d:
            product = product + d * (_diagonal(z) * _diagonal(w)).sum(-1)
        return product + t * _diagonal(z).sum(-1) * _diagonal(w).sum(-1) if t else product

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product: its trace and diagonal solve scalar equations, then everything is explicit."""
        n = g.shape[-1]
        a, d, t = self._coefficients(n)
        g = self.project_chart(g)
        if not d and not t:
            return g / a
        diagonal = _diagonal(g)
        trace = diagonal.sum(-1, keepdim=True) / (a + (1 - 1 / n) * (d + n * t))
        spread = (d + n * t) * trace / n**2
        entries = (diagonal - (1 - 2 / n) * t * trace - spread) / (a + (1 - 2 / n) * d)
        return (g - self.project_chart(torch.diag_embed(d * entries + t * trace))) / a


def _check_positive(n: int, smallest: int, expression: str, value: float) -> None:
    if n >= smallest and not value > 0:
        raise ValueError(f"{expression} must be positive for a Riemannian metric at n = {n}, got {value:g}")
