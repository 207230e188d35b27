"""The affine-invariant metric of SPD matrices in its plain form, and inversion in the group of Cholesky factors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from manifoldnorm.linalg import (
    Eigendecomposition,
    cholesky,
    expm,
    half_lower,
    inverse_triangular,
    log_moments,
    logm,
    powm,
    scaled_power,
    symmetrize,
)
from manifoldnorm.linalg.precision import computed_in, working_dtype
from manifoldnorm.manifolds.base import LieGroup
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.relative_spectrum import relative_eigh
from manifoldnorm.manifolds.spd_mean import affine_invariant_mean
from manifoldnorm.manifolds.spd_points import (
    SPDPoints,
    check_trace_metric,
    congruence,
    raise_trace_inner,
    trace_inner,
)


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
        check_trace_metric(self.alpha, self.beta, shape[-1])

    @computed_in(working_dtype)
    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the Cholesky factors."""
        factor = cholesky(x)
        return symmetrize(factor @ y @ factor.mT)

    def inv(self, x: Tensor) -> Tensor:
        """Invert the Cholesky factor."""
        return inverse_cholesky(x)

    @computed_in(working_dtype)
    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute alpha tr(x^-1 u x^-1 v) + beta tr(x^-1 u) tr(x^-1 v)."""
        inverse = inverse_triangular(cholesky(x))
        left = congruence(inverse, u)
        right = left if v is None else congruence(inverse, v)
        product = trace_inner(left, right, self.alpha, self.beta)
        return product[..., None, None] if keepdim else product

    @computed_in(working_dtype)
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute x G x / alpha less its trace part, with G the symmetric part of `u`."""
        factor = cholesky(x)
        whitened = raise_trace_inner(congruence(factor.mT, symmetrize(u)), self.alpha, self.beta)
        return congruence(factor, whitened)

    @computed_in(working_dtype)
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic; it stays positive definite for every `u`."""
        factor = cholesky(x)
        return congruence(factor, expm(congruence(inverse_triangular(factor), u)))

    @computed_in(working_dtype)
    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute L log(L^-1 y L^-T) L^T with L = chol(x)."""
        factor = cholesky(x)
        whitened, eigen = self._relative(factor, y)
        return congruence(factor, logm(whitened, eigen=eigen))

    @computed_in(working_dtype)
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic: E v E^T with E = (y x^-1)^(1/2)."""
        factor = cholesky(x)
        whitened, eigen = self._relative(factor, y)
        root = powm(whitened, 0.5, eigen=eigen)
        return congruence(factor @ root @ inverse_triangular(factor), v)

    @computed_in(working_dtype)
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute L (L^-1 y L^-T)^t L^T with L = chol(x)."""
        factor = cholesky(x)
        whitened, eigen = self._relative(factor, y)
        return congruence(factor, powm(whitened, t, eigen=eigen))

    @computed_in(working_dtype)
    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute alpha |log(L^-1 y L^-T)|^2 + beta (log det)^2 with L = chol(x)."""
        trace, square = log_moments(*self._relative(cholesky(x), y))
        product = self.alpha * square + self.beta * trace**2 if self.beta else self.alpha * square
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

    @computed_in(working_dtype)
    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute log(L^-1 x L^-T) with L = chol(base): the logarithm of base^-1 (.) x."""
        whitened, eigen = self._relative(cholesky(base), x)
        return logm(whitened, eigen=eigen)

    @computed_in(working_dtype)
    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute L exp(t) L^T with L = chol(base)."""
        return congruence(cholesky(base), expm(t))

    @computed_in(working_dtype)
    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Rescale with one eigendecomposition for the logarithm and the power; see `Manifold.rescale`."""
        return self._rescale_whitened(*self._relative(cholesky(mean), x), bias, factor)

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
        whitened = congruence(inverse_triangular(cholesky(mean)), x)
        return self._rescale_whitened(whitened, eigen, bias, factor), mean

    def _relative(self, factor: Tensor, x: Tensor) -> tuple[Tensor, Eigendecomposition]:
        """Return L^-1 x L^-T for the factor L, and its decomposition."""
        inverse = inverse_triangular(factor)
        whitened = congruence(inverse, x)
        return whitened, relative_eigh(inverse, x, whitened)

    def _rescale_whitened(
        self, whitened: Tensor, eigen: Eigendecomposition, bias: Tensor, factor: Callable[[Tensor], Tensor]
    ) -> Tensor:
        trace, square = log_moments(whitened, eigen)
        exponent = factor(self.alpha * square + self.beta * trace**2 if self.beta else self.alpha * square)
        power = scaled_power(whitened, exponent.expand(square.shape), eigen)
        return congruence(cholesky(bias), power)


def inverse_cholesky(x: Tensor) -> Tensor:
    """Return L^-1 L^-T for L = chol(x), the inverse in the Cholesky group."""
    inverse = inverse_triangular(cholesky(x))
    return symmetrize(inverse @ inverse.mT)


def inverse_cholesky_frechet(x: Tensor, u: Tensor) -> Tensor:
    """Differentiate `inverse_cholesky` at `x` along the symmetric `u`."""
    inverse = inverse_triangular(cholesky(x))
    product = half_lower(congruence(inverse, u)) @ inverse @ inverse.mT
    return -(product + product.mT)
