"""The two correlation geometries that come from a matrix logarithm; both are invariant under permutations."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import Exp, Log, eigh, expm, frechet, logm, symmetrize
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.manifolds.correlation_points import (
    CorrelationPoints,
    check_positive_at,
    correlation_from_covariance,
    diagonal_of,
    with_unit_diagonal,
)
from manifoldnorm.manifolds.correlation_solvers import (
    hollow,
    solve_diagonal_jacobian,
    unit_diagonal_logarithm,
    unit_row_sum_scaling,
)
from manifoldnorm.manifolds.pullback import Flat


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
        check_positive_at(n, 4, "alpha", a)
        check_positive_at(n, 3, "2 alpha + (n - 2) beta", 2 * a + (n - 2) * b)
        check_positive_at(n, 2, "alpha + (n - 1) (beta + n gamma)", a + (n - 1) * (b + n * c))

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
        shift = solve_diagonal_jacobian(logarithm, diagonal_of(moved), eigen)
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
        check_positive_at(n, 4, "alpha", a)
        check_positive_at(n, 3, "n alpha + (n - 2) delta", n * a + (n - 2) * d)
        check_positive_at(n, 2, "n alpha + (n - 1) (delta + n zeta)", n * a + (n - 1) * (d + n * z))

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
        scale = torch.rsqrt(diagonal_of(covariance))
        correlation, moved = (scale.unsqueeze(-1) * a * scale.unsqueeze(-2) for a in (covariance, moved))
        product = 0.5 * diagonal_of(moved).unsqueeze(-1) * correlation
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
            product = product + d * (diagonal_of(z) * diagonal_of(w)).sum(-1)
        return product + t * diagonal_of(z).sum(-1) * diagonal_of(w).sum(-1) if t else product

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product: its trace and diagonal solve scalar equations, then everything is explicit."""
        n = g.shape[-1]
        a, d, t = self._coefficients(n)
        g = self.project_chart(g)
        if not d and not t:
            return g / a
        diagonal = diagonal_of(g)
        trace = diagonal.sum(-1, keepdim=True) / (a + (1 - 1 / n) * (d + n * t))
        spread = (d + n * t) * trace / n**2
        entries = (diagonal - (1 - 2 / n) * t * trace - spread) / (a + (1 - 2 / n) * d)
        return (g - self.project_chart(torch.diag_embed(d * entries + t * trace))) / a
