"""Symmetric positive definite matrices: four Riemannian metrics, each with its group structure."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Eigendecomposition,
    Exp,
    Log,
    Power,
    cholesky,
    cholesky_frechet,
    clamp_eigenvalues,
    eigh,
    exp_cholesky,
    expm,
    frechet,
    half_lower,
    inverse_triangular,
    log_cholesky,
    log_moments,
    logm,
    powm,
    scaled_power,
    symmetrize,
)
from manifoldnorm.manifolds.base import LieGroup, Manifold
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.mean import Reduce, expand_like, identity_reduce, normalized_weights
from manifoldnorm.manifolds.pullback import Flat, Pullback
from manifoldnorm.manifolds.spd_mean import affine_invariant_mean


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return float(value)


class SPDPoints(Manifold):
    """What the SPD geometries share: the points, their tangent vectors (symmetric matrices), and how to draw them."""

    name = "symmetric positive definite matrices"
    ndim = 2

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two equal dimensions."""
        super().check_event_shape(shape, name)
        if shape[-1] != shape[-2] or shape[-1] == 0:
            raise ValueError(f"{name} must hold square matrices, shape (..., n, n), got shape {tuple(shape)}")

    def projx(self, x: Tensor) -> Tensor:
        """Symmetrise and raise eigenvalues below n eps times the largest one to that floor."""
        x = symmetrize(x)
        largest = torch.linalg.matrix_norm(x, ord="fro", keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        floor = torch.finfo(x.dtype).eps * x.shape[-1]
        return clamp_eigenvalues(x / largest, floor) * largest

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Symmetrise."""
        return expand_like(symmetrize(u), x)

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
        """Draw exponentials of symmetric Gaussian matrices whose entries have standard deviation 0.5."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return expm(0.5 * symmetrize(noise))

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look for a matrix that is not symmetric."""
        if x.numel() == 0:
            return super().is_plausible(x)
        return (x - x.mT).abs().amax() <= default_tolerance(x.dtype) * x.abs().amax()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        scale = x.abs().flatten(-2).amax(-1)
        asymmetry = (x - x.mT).abs().flatten(-2).amax(-1)
        smallest = eigh(x).values[..., 0]
        return [
            Violation("symmetric, but max |x - x^T|", asymmetry, scale),
            Violation("positive definite, but its smallest eigenvalue", smallest, failed=~(smallest > 0)),
        ]


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
        self.alpha, self.beta = _positive("alpha", alpha), float(beta)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        _check_trace_metric(self.alpha, self.beta, shape[-1])

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
        return _trace_inner(z, w, self.alpha, self.beta)

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product on symmetric matrices."""
        return _raise_trace_inner(symmetrize(g), self.alpha, self.beta)


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
        return (z * w).flatten(-2).sum(-1) / self.power**2

    def raise_chart(self, g: Tensor) -> Tensor:
        """Invert the inner product on lower triangular matrices."""
        return torch.tril(g) * self.power**2


class AffineInvariantCore(SPDPoints, LieGroup):
    """The affine-invariant metric without power deformation; the public classes pull it back.

    The group is that of Cholesky factors: chol(P (.) Q) = chol(P) chol(Q); left translations are isometries.
    """

    name = "SPD matrices with the affine-invariant metric"

    def __init__(self, alpha: float = 1.0, beta: float = 0.0) -> None:
        self.alpha, self.beta = alpha, beta

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        _check_trace_metric(self.alpha, self.beta, shape[-1])

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the Cholesky factors."""
        factor = cholesky(x)
        return symmetrize(factor @ y @ factor.mT)

    def inv(self, x: Tensor) -> Tensor:
        """Invert the Cholesky factor."""
        return inverse_cholesky(x)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute alpha tr(x^-1 u x^-1 v) + beta tr(x^-1 u) tr(x^-1 v)."""
        inverse = inverse_triangular(cholesky(x))
        left = _congruence(inverse, u)
        right = left if v is None else _congruence(inverse, v)
        product = _trace_inner(left, right, self.alpha, self.beta)
        return product[..., None, None] if keepdim else product

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute x G x / alpha less its trace part, with G the symmetric part of `u`."""
        factor = cholesky(x)
        whitened = _raise_trace_inner(_congruence(factor.mT, symmetrize(u)), self.alpha, self.beta)
        return _congruence(factor, whitened)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic; it stays positive definite for every `u`."""
        factor = cholesky(x)
        return _congruence(factor, expm(_congruence(inverse_triangular(factor), u)))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute L log(L^-1 y L^-T) L^T with L = chol(x)."""
        factor = cholesky(x)
        return _congruence(factor, logm(_congruence(inverse_triangular(factor), y)))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic: E v E^T with E = (y x^-1)^(1/2)."""
        factor = cholesky(x)
        inverse = inverse_triangular(factor)
        root = powm(_congruence(inverse, y), 0.5)
        return _congruence(factor @ root @ inverse, v)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute L (L^-1 y L^-T)^t L^T with L = chol(x)."""
        factor = cholesky(x)
        return _congruence(factor, powm(_congruence(inverse_triangular(factor), y), t))

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute alpha |log(L^-1 y L^-T)|^2 + beta (log det)^2 with L = chol(x)."""
        logarithm = logm(_congruence(inverse_triangular(cholesky(x)), y))
        product = _trace_inner(logarithm, logarithm, self.alpha, self.beta)
        return product[..., None, None] if keepdim else product

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Karcher mean, from the arithmetic mean on; see `Manifold.mean`."""
        points, weights = normalized_weights(x, weights, dim, 2, reduce)
        return affine_invariant_mean(points, weights, steps=steps, reduce=reduce)[0]

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute log(L^-1 x L^-T) with L = chol(base): the logarithm of base^-1 (.) x."""
        return logm(_congruence(inverse_triangular(cholesky(base)), x))

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute L exp(t) L^T with L = chol(base)."""
        return _congruence(cholesky(base), expm(t))

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Rescale with one eigendecomposition for the logarithm and the power; see `Manifold.rescale`."""
        whitened = _congruence(inverse_triangular(cholesky(mean)), x)
        return self._rescale_whitened(whitened, eigh(whitened), bias, factor)

    def standardize(
        self,
        x: Tensor,
        bias: Tensor,
        factor: Callable[[Tensor], Tensor],
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
        detach: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Reuse the decomposition at which the mean's iteration stops; see `Manifold.standardize`."""
        points, weights = normalized_weights(x.detach() if detach else x, None, 0, 2, reduce)
        mean, eigen = affine_invariant_mean(points, weights, steps=steps, reduce=reduce)
        whitened = _congruence(inverse_triangular(cholesky(mean)), x)
        return self._rescale_whitened(whitened, eigen, bias, factor), mean

    def _rescale_whitened(
        self, whitened: Tensor, eigen: Eigendecomposition, bias: Tensor, factor: Callable[[Tensor], Tensor]
    ) -> Tensor:
        trace, square = log_moments(whitened, eigen)
        exponent = factor(self.alpha * square + self.beta * trace**2 if self.beta else self.alpha * square)
        power = scaled_power(whitened, exponent.expand(square.shape), eigen)
        return _congruence(cholesky(bias), power)


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
        self.power, self.alpha, self.beta = _nonzero_power(power), _positive("alpha", alpha), float(beta)

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError for a shape that is not (..., n, n) or an n for which the metric is not positive."""
        super().check_event_shape(shape, name)
        _check_trace_metric(self.alpha, self.beta, shape[-1])

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

    def deform(self, x: Tensor) -> Tensor:
        """Invert x^power in the Cholesky group."""
        return inverse_cholesky(_power(x, self.power))

    def undeform(self, z: Tensor) -> Tensor:
        """Invert in the Cholesky group, then take the inverse power."""
        return _power(inverse_cholesky(z), 1 / self.power)

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Differentiate `deform` at `x` along `u`."""
        return _inverse_cholesky_frechet(_power(x, self.power), _power_frechet(x, u, self.power))

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Differentiate `undeform` at `z` along `w`."""
        return _power_frechet(inverse_cholesky(z), _inverse_cholesky_frechet(z, w), 1 / self.power)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the Cholesky factors of the powers; group inversion reverses the order of its arguments."""
        return self.undeform(self.codomain.mul(self.deform(y), self.deform(x)))

    def translate(self, x: Tensor, by: Tensor) -> Tensor:
        """Translate on the right."""
        return self.mul(x, by)


def inverse_cholesky(x: Tensor) -> Tensor:
    """Return L^-1 L^-T for L = chol(x), the inverse in the Cholesky group."""
    inverse = inverse_triangular(cholesky(x))
    return symmetrize(inverse @ inverse.mT)


def _inverse_cholesky_frechet(x: Tensor, u: Tensor) -> Tensor:
    inverse = inverse_triangular(cholesky(x))
    product = half_lower(_congruence(inverse, u)) @ inverse @ inverse.mT
    return -(product + product.mT)


def _congruence(factor: Tensor, x: Tensor) -> Tensor:
    return symmetrize(factor @ x @ factor.mT)


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


def _check_trace_metric(alpha: float, beta: float, n: int) -> None:
    if not alpha + n * beta > 0:
        raise ValueError(
            f"alpha + n beta must be positive for a Riemannian metric, got {alpha} + {n} * {beta} = {alpha + n * beta}"
        )


def _trace(x: Tensor) -> Tensor:
    return torch.diagonal(x, dim1=-2, dim2=-1).sum(-1)


def _trace_inner(z: Tensor, w: Tensor, alpha: float, beta: float) -> Tensor:
    product = alpha * (z * w).flatten(-2).sum(-1)
    return product + beta * _trace(z) * _trace(w) if beta else product


def _raise_trace_inner(g: Tensor, alpha: float, beta: float) -> Tensor:
    if not beta:
        return g / alpha
    n = g.shape[-1]
    shift = beta / (alpha + beta * n) * _trace(g)
    return (g - shift[..., None, None] * torch.eye(n, dtype=g.dtype, device=g.device)) / alpha


__all__ = [
    "AffineInvariantCore",
    "SPDAffineInvariant",
    "SPDCholeskyRightInvariant",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "SPDPoints",
    "inverse_cholesky",
]
