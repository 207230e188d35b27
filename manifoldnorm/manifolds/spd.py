"""Symmetric positive definite matrices: four Riemannian metrics, each with its group structure."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Exp,
    Log,
    Power,
    cholesky,
    cholesky_frechet,
    exp_cholesky,
    expm,
    frechet,
    log_cholesky,
    logm,
    powm,
    symmetrize,
)
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.manifolds.affine_invariant import AffineInvariantCore, inverse_cholesky, inverse_cholesky_frechet
from manifoldnorm.manifolds.base import LieGroup
from manifoldnorm.manifolds.mean import expand_like
from manifoldnorm.manifolds.pullback import Flat, Pullback
from manifoldnorm.manifolds.spd_points import (
    SPDPoints,
    check_positive,
    check_trace_metric,
    raise_trace_inner,
    trace_inner,
)


class SPDLogEuclidean(SPDPoints, Flat):
    """The log-Euclidean metric: the matrix logarithm is an isometry onto the symmetric matrices.

    Parameters
    ----------
    alpha, beta : float
        The inner product at the identity is alpha tr(U V) + beta tr U tr V; alpha > 0 and alpha + n beta > 0.

    Notes
    -----
    Arsigny, Fillard, Pennec and Ayache (2007). The group operation is exp(log P + log Q).

    Examples
    --------
    >>> metric = SPDLogEuclidean()
    >>> metric.mean(torch.stack([torch.eye(2), 4 * torch.eye(2)]))
    tensor([[2., 0.],
            [0., 2.]])
    """

    name = "SPD matrices with the log-Euclidean metric"

    def __init__(self, alpha: float = 1.0, beta: float = 0.0) -> None:
        self.alpha, self.beta = check_positive("alpha", alpha), float(beta)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        check_trace_metric(self.alpha, self.beta, shape[-1])

    def deform(self, x: Tensor) -> Tensor:
        """Take the matrix logarithm."""
        return logm(x)

    def undeform(self, z: Tensor) -> Tensor:
        """Take the matrix exponential."""
        return expm(z)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate the logarithm at `x` along `u`."""
        return frechet(x, u, Log())

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate the exponential at `z` along `w`."""
        return frechet(z, w, Exp())

    def project_chart(self, z: Tensor) -> Tensor:
        """Symmetrise."""
        return symmetrize(z)

    def chart_inner(self, z: Tensor, w: Tensor) -> Tensor:
        """Compute alpha tr(z w) + beta tr z tr w."""
        return trace_inner(z, w, self.alpha, self.beta)

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product on symmetric matrices."""
        return raise_trace_inner(symmetrize(g), self.alpha, self.beta)


class SPDLogCholesky(SPDPoints, Flat):
    """The log-Cholesky metric: the Cholesky factor with the logarithm of its diagonal is an isometry.

    Parameters
    ----------
    power : float
        The metric is that of P -> P^power, divided by power^2; nonzero.

    Notes
    -----
    Lin (2019); the power deformation is that of Chen et al. (LieBN, 2024). With `power` = 1 nothing is diagonalised,
    which makes it the cheapest of the four metrics.

    Examples
    --------
    >>> SPDLogCholesky().dist(torch.eye(2), torch.diag(torch.tensor([torch.e**2, 1.0])))
    tensor(1.)
    """

    name = "SPD matrices with the log-Cholesky metric"

    def __init__(self, power: float = 1.0) -> None:
        self.power = _nonzero_power(power)

    def deform(self, x: Tensor) -> Tensor:
        """Return the strictly lower Cholesky factor of x^power plus the logarithm of its diagonal."""
        return log_cholesky(_power(x, self.power))

    def undeform(self, z: Tensor) -> Tensor:
        """Rebuild the factor and multiply it with its transpose."""
        return _power(exp_cholesky(z), 1 / self.power)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        factor = cholesky(_power(x, self.power))
        moved = cholesky_frechet(factor, _power_frechet(x, u, self.power))
        diagonal = torch.diagonal(moved, dim1=-2, dim2=-1) / torch.diagonal(factor, dim1=-2, dim2=-1)
        return torch.tril(moved, -1) + torch.diag_embed(diagonal)

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        factor = _exp_diagonal(z)
        diagonal = torch.diagonal(w, dim1=-2, dim2=-1) * torch.diagonal(factor, dim1=-2, dim2=-1)
        moved = torch.tril(w, -1) + torch.diag_embed(diagonal)
        product = moved @ factor.mT
        return _power_frechet(symmetrize(factor @ factor.mT), product + product.mT, 1 / self.power)

    def project_chart(self, z: Tensor) -> Tensor:
        """Keep the lower triangle."""
        return torch.tril(z)

    def chart_inner(self, z: Tensor, w: Tensor) -> Tensor:
        """Compute the Frobenius inner product over power^2."""
        return frobenius_inner(z, w) / self.power**2

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product on lower triangular matrices."""
        return torch.tril(g) * self.power**2


class SPDAffineInvariant(SPDPoints, Pullback, LieGroup):
    """The affine-invariant metric, deformed by a matrix power, with the Cholesky group (left invariant).

    Parameters
    ----------
    power : float
        The metric is that of P -> P^power, divided by power^2; nonzero.
    alpha, beta : float
        The inner product at the identity is alpha tr(U V) + beta tr U tr V; alpha > 0 and alpha + n beta > 0.

    Notes
    -----
    Pennec, Fillard and Ayache (2006); Thanwerdas and Pennec (2023) for the deformations. The distance is
    |log(P^-1/2 Q P^-1/2)| for the default parameters.

    Examples
    --------
    >>> SPDAffineInvariant().dist(torch.eye(2), torch.e * torch.eye(2))
    tensor(1.4142)
    """

    name = "SPD matrices with the affine-invariant metric"

    def __init__(self, power: float = 1.0, alpha: float = 1.0, beta: float = 0.0) -> None:
        self.power, self.alpha, self.beta = _nonzero_power(power), check_positive("alpha", alpha), float(beta)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        check_trace_metric(self.alpha, self.beta, shape[-1])

    @property
    def is_chart(self) -> bool:
        """Whether there is no deformation."""
        return self.power == 1

    @property
    def codomain(self) -> AffineInvariantCore:
        """The undeformed metric, scaled by power^-2."""
        return AffineInvariantCore(self.alpha / self.power**2, self.beta / self.power**2)

    def deform(self, x: Tensor) -> Tensor:
        """Take the power."""
        return _power(x, self.power)

    def undeform(self, z: Tensor) -> Tensor:
        """Take the inverse power."""
        return _power(z, 1 / self.power)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate the power at `x` along `u`."""
        return _power_frechet(x, u, self.power)

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate the inverse power at `z` along `w`."""
        return _power_frechet(z, w, 1 / self.power)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the Cholesky factors of the powers."""
        return self.undeform(self.codomain.mul(self.deform(x), self.deform(y)))

    def inv(self, x: Tensor) -> Tensor:
        """Invert the Cholesky factor of the power."""
        return self.undeform(self.codomain.inv(self.deform(x)))


class SPDCholeskyRightInvariant(SPDAffineInvariant):
    """The right-invariant metric of the Cholesky group: the affine-invariant one seen through group inversion.

    Parameters
    ----------
    power, alpha, beta : float
        As for `SPDAffineInvariant`.

    Notes
    -----
    Chen et al. (LieBN). With iota(P) = L^-1 L^-T, L = chol(P), the distance is that of iota(P) and iota(Q) in the
    affine-invariant metric. Right translations are isometries.

    Examples
    --------
    >>> x = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> [metric.dist(x, torch.eye(2)) for metric in (SPDCholeskyRightInvariant(), SPDAffineInvariant())]
    [tensor(1.0986), tensor(1.0986)]
    """

    name = "SPD matrices with the Cholesky right-invariant metric"

    @property
    def is_chart(self) -> bool:
        """Never: group inversion deforms."""
        return False

    def deform(self, x: Tensor) -> Tensor:
        """Invert x^power in the Cholesky group."""
        return inverse_cholesky(_power(x, self.power))

    def undeform(self, z: Tensor) -> Tensor:
        """Invert in the Cholesky group, then take the inverse power."""
        return _power(inverse_cholesky(z), 1 / self.power)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return inverse_cholesky_frechet(_power(x, self.power), _power_frechet(x, u, self.power))

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _power_frechet(inverse_cholesky(z), inverse_cholesky_frechet(z, w), 1 / self.power)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the Cholesky factors of the powers; group inversion reverses the order of its arguments."""
        return self.undeform(self.codomain.mul(self.deform(y), self.deform(x)))

    def translate(self, x: Tensor, by: Tensor) -> Tensor:
        """Translate on the right."""
        return self.mul(x, by)


def _exp_diagonal(z: Tensor) -> Tensor:
    return torch.tril(z, -1) + torch.diag_embed(torch.exp(torch.diagonal(z, dim1=-2, dim2=-1)))


def _nonzero_power(power: float) -> float:
    if power == 0:
        raise ValueError("power must be nonzero, got 0; the limit of small powers is SPDLogEuclidean")
    return float(power)


def _power(x: Tensor, power: float) -> Tensor:
    return x if power == 1 else powm(x, power)


def _power_frechet(x: Tensor, u: Tensor, power: float) -> Tensor:
    return expand_like(u, x) if power == 1 else frechet(x, u, Power(power))
