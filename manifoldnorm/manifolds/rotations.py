"""The rotation group SO(n) with its bi-invariant metric."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from manifoldnorm.linalg.orthogonal import expm_skew, logm_rotation, nearest_rotation, skew_part
from manifoldnorm.linalg.rotation3 import rotation_from_vector, vector_from_rotation
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.manifolds.base import LieGroup
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, karcher_mean, normalized_weights
from manifoldnorm.manifolds.rotation_mean import ImplicitMean, VectorsAboutMean, newton_mean, warn_unless_unique
from manifoldnorm.manifolds.square_matrices import SquareMatrices


class Rotations(SquareMatrices, LieGroup):
    """Rotation matrices of any size n >= 2, with the inner product tr(U^T V) of skew matrices at the identity.

    Parameters
    ----------
    side : {"left", "right"}
        The translation by which a batch norm centres: M^T R or R M^T. Both are isometries.

    Notes
    -----
    The distance is the Frobenius norm of log(R^T S); for n = 3 it is sqrt(2) times the angle, for n = 2 as well. At an
    angle of pi, where shortest geodesics are not unique, one of them is taken and derivatives in the direction in which
    the logarithm jumps count as zero. A matrix that is a rotation up to rounding counts as the nearest rotation; a
    reflection, or a matrix far from orthogonal, gives NaN, alone in its batch.

    Conversions from and to quaternions and rotation vectors are in `manifoldnorm.linalg`.

    Examples
    --------
    >>> group = Rotations()
    >>> quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> group.dist(torch.eye(2), quarter) / 2**0.5
    tensor(1.5708)
    """

    name = "rotation matrices"
    smallest = 2
    excluded = "the only 1 x 1 rotation is 1"

    def __init__(self, side: str = "left") -> None:
        if side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {side!r}')
        self.side = side

    def dimension(self, *event_shape: int) -> int:
        """Return n (n - 1) / 2."""
        n = event_shape[-1]
        return n * (n - 1) // 2

    # Points.

    def projx(self, x: Tensor) -> Tensor:
        """Return the nearest rotations."""
        return nearest_rotation(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return x skew(x^T u)."""
        return x @ skew_part(x.mT @ u)

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw uniformly (Haar measure): the orthogonal factor of a Gaussian matrix, with determinant one."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        factor, upper = torch.linalg.qr(noise)
        sign = torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1))
        factor = factor * sign.unsqueeze(-2)
        flip = torch.ones_like(sign)
        flip[..., 0] = torch.sign(torch.linalg.det(factor))
        return factor * flip.unsqueeze(-2)

    def is_plausible(self, x: Tensor) -> Tensor:
        """Look for a matrix that is not orthogonal or reverses orientation."""
        if x.numel() == 0:
            return super().is_plausible(x)
        identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        close = (x.mT @ x - identity).abs().amax() <= default_tolerance(x.dtype)
        return close & (_determinant(x).amin() > 0)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        deviation = (x.mT @ x - identity).abs().amax((-1, -2))
        determinant = _determinant(x)
        return [
            Violation("orthogonal, but max |x^T x - 1|", deviation),
            Violation("a rotation, but its determinant", determinant, failed=~(determinant > 0)),
        ]

    # Group.

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the matrices."""
        return x @ y

    def inv(self, x: Tensor) -> Tensor:
        """Transpose."""
        return x.mT

    def translate(self, x: Tensor, by: Tensor) -> Tensor:
        """Translate on the side of the batch norm."""
        return by @ x if self.side == "left" else x @ by

    # Metric.

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute tr(u^T v), which does not depend on `x`."""
        product = (u * (u if v is None else v)).sum((-1, -2), keepdim=keepdim)
        shape = torch.broadcast_shapes(product.shape, x.shape[:-2] + ((1, 1) if keepdim else ()))
        return product.expand(shape)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute x exp(x^T u)."""
        return x @ expm_skew(x.mT @ u)

    def expmap0(self, u: Tensor) -> Tensor:
        """Compute exp(u) of the skew part of `u`."""
        return expm_skew(u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute x log(x^T y)."""
        return x @ logm_rotation(x.mT @ y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic: x E (x^T v) E with E the square root of x^T y."""
        half = expm_skew(0.5 * logm_rotation(x.mT @ y))
        return x @ half @ (x.mT @ v) @ half

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute x exp(t log(x^T y))."""
        if x.shape[-1] == 3:
            share = t.unsqueeze(-1) if isinstance(t, Tensor) and t.ndim else t
            return x @ rotation_from_vector(share * vector_from_rotation(x.mT @ y))
        return x @ expm_skew(self._over_events(t) * logm_rotation(x.mT @ y))

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute |log(x^T y)|^2."""
        return logm_rotation(x.mT @ y).square().sum((-1, -2), keepdim=keepdim)

    # Statistics.

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Frechet mean, from the chordal mean on; see `Manifold.mean`.

        With `steps` None there is a `UniquenessWarning` when the data leave the ball, of a right angle around the mean,
        in which it is unique.
        """
        points, weights = normalized_weights(x, weights, dim, 2, reduce)
        if x.shape[-1] == 3:
            return self._vectors_about_mean(points, weights, steps, reduce)[1]
        with torch.no_grad():
            mean = self._karcher_mean(points, weights, steps, reduce)
        if torch.is_grad_enabled() and (points.requires_grad or weights.requires_grad):
            result: Tensor = ImplicitMean.apply(points, weights, mean, reduce)
            return result
        return mean

    def _karcher_mean(self, points: Tensor, weights: Tensor, steps: int | None, reduce: Reduce) -> Tensor:
        mean = karcher_mean(self, points, weights, steps=steps, reduce=reduce)
        if steps is None and points.shape[0]:
            warn_unless_unique(self.dist(mean, points))
        return mean

    def _vectors_about_mean(
        self, points: Tensor, weights: Tensor, steps: int | None, reduce: Reduce
    ) -> tuple[Tensor, Tensor]:
        """Return the rotation vectors log(M^T x) of 3 x 3 rotations about their mean M, and M."""
        solution = newton_mean(points, weights, steps=steps, reduce=reduce)
        mean, vectors = solution.mean, solution.vectors
        if steps is None and not bool(solution.converged.all()):
            with torch.no_grad():
                mean = self._karcher_mean(points, weights, steps, reduce)
                vectors = vector_from_rotation(mean.mT @ points)
        elif steps is None:
            warn_unless_unique(solution.widest * math.sqrt(2))
        if not torch.is_grad_enabled() or not (points.requires_grad or weights.requires_grad):
            return vectors, mean
        attached: tuple[Tensor, Tensor] = VectorsAboutMean.call(points, weights, mean, vectors, reduce)
        return attached

    # Normalising.

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute log(base^T x), or log(x base^T) on the right."""
        return logm_rotation(self._relative(x, base))

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute base exp(t), or exp(t) base on the right."""
        return self.translate(expm_skew(t), base)

    def _relative(self, x: Tensor, base: Tensor) -> Tensor:
        return self.translate(x, base.mT)

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Rescale, for n = 3 by rotation vectors; see `Manifold.rescale`."""
        if x.shape[-1] != 3:
            return super().rescale(x, mean, bias, factor)
        return self._rotated(vector_from_rotation(self._relative(x, mean)), bias, factor)

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
        """Reuse the rotation vectors with which the mean of 3 x 3 rotations is found; see `Manifold.standardize`."""
        if x.shape[-1] != 3 or detach:
            return super().standardize(x, bias, factor, steps=steps, reduce=reduce, detach=detach)
        points, weights = normalized_weights(x, None, 0, 2, reduce)
        vectors, mean = self._vectors_about_mean(points, weights, steps, reduce)
        if self.side == "right":
            # log(x M^T) is log(M^T x) seen from outside.
            vectors = (mean @ vectors.unsqueeze(-1)).squeeze(-1)
        return self._rotated(vectors, bias, factor), mean

    def _rotated(self, vectors: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        scale = factor(2 * frobenius_inner(vectors, vectors, 1))
        return self.translate(rotation_from_vector(scale.unsqueeze(-1) * vectors), bias)


def _determinant(x: Tensor) -> Tensor:
    if x.shape[-1] != 3:
        return torch.linalg.det(x)
    return (torch.linalg.cross(x[..., 0], x[..., 1]) * x[..., 2]).sum(-1)
