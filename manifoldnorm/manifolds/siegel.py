"""The matrix ball, bounded symmetric domain of complex p x q matrices, and the Siegel disk of symmetric ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import eigh, inv_sqrtm, x_coth
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.singular import ClampMagnitude, SingularDecomposition, Tanh, odd, tanhm
from manifoldnorm.manifolds import matrix_ball_maps as maps
from manifoldnorm.manifolds.bounded_domain import BoundedDomain, inside_margin
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.complex_points import ComplexPoints, holds_everywhere, holds_somewhere, mask_failed
from manifoldnorm.manifolds.hadamard_mean import hadamard_mean
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights


class MatrixBall(BoundedDomain):
    """The ball of complex p x q matrices with singular values below one, a symmetric space of curvature <= 0.

    Its metric is g_Z(U, V) = scale^2 Re tr[(I - Z Z^H)^-1 U (I - Z^H Z)^-1 V^H], invariant under Z -> U Z V^H and under
    the transvections phi_W (`translate`). With the hyperbolic angles theta of Z seen from W, the distance is
    scale |theta|, the Kobayashi distance scale max(theta).

    Parameters
    ----------
    scale : float
        1 (the default): Frobenius product at the origin, curvature in [-4, 0], geomstats' convention. 2: curvature in
        [-1, 0], the convention of geoopt's distance and of the affine-invariant metric under the Cayley map.

    Notes
    -----
    Points and tangent vectors are complex tensors of shape (..., p, q). Gradients of PyTorch are
    dL/dRe + i dL/dIm. Hua (1963); Nielsen (2020) for the Siegel disk; the cancellation-free distance and logarithm are
    described in the guide.

    Examples
    --------
    >>> ball = MatrixBall()
    >>> z = torch.diag(torch.tensor([0.5, 0.0])).to(torch.complex128)
    >>> ball.dist(ball.origin(2, 2, dtype=z.dtype), z)
    tensor(0.5493, dtype=torch.float64)
    """

    name = "the matrix ball"
    ndim = 2

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two positive dimensions."""
        super().check_event_shape(shape, name)
        if 0 in shape[-2:]:
            raise ValueError(f"{name} must hold matrices with entries, shape (..., p, q), got shape {tuple(shape)}")

    def dimension(self, *event_shape: int) -> int:
        """Return the real dimension, 2 p q."""
        p, q = event_shape
        return 2 * p * q

    def _restore(self, z: Tensor) -> Tensor:
        """Undo round-off that leaves the submanifold."""
        return z

    def _inside(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        """Restore a computed point and shrink it where round-off put it on the boundary or beyond."""
        z = self._restore(z)
        margin = inside_margin(dtype, max(z.shape[-2:]))
        if holds_everywhere(maps.is_inside(z.detach(), margin)):
            return z
        return z * ((1 - margin) / maps.largest_singular_value(z)).clamp(max=1.0)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        self.require_complex(x)
        largest = maps.largest_singular_value(x)[..., 0, 0]
        limit = 1 - inside_margin(largest.dtype, max(x.shape[-2:])) / 2
        return [Violation("inside, but its largest singular value", largest, failed=~(largest < limit))]

    def is_plausible(self, x: Tensor) -> Tensor:
        """Return False for a real tensor or where an entry is not below one; see `Manifold.is_plausible`."""
        if not x.is_complex() or not x.numel():
            return super().is_plausible(x) & torch.as_tensor(x.is_complex())
        return x.detach().abs().amax() < 1

    # Points and tangent vectors.

    def projx(self, x: Tensor) -> Tensor:
        """Lower singular values above 1 - `projection_margin` to that; the nearest such point."""
        (z,) = ComplexPoints._inputs(self, x=x)
        clamped = odd(self._restore(z), ClampMagnitude(1 - self.projection_margin(x.dtype)))
        return self._restore(clamped).to(x.dtype)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the vector, broadcast against `x`: all matrices are tangent."""
        return self._restore(u).expand(torch.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute (I - Z Z^H) G (I - Z^H Z) / scale^2."""
        z, g = self._inputs(x=x, u=u)
        return self._restore(maps.gap_left(z) @ self._restore(g) @ maps.gap_right(z) / self.scale**2).to(x.dtype)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute scale^2 Re tr[(I - Z Z^H)^-1 U (I - Z^H Z)^-1 V^H]."""
        z, a, b = self._inputs(x=x, u=u, v=u if v is None else v)
        frame = maps.cholesky_factors(z)
        left = frame.whiten(a)
        right = left if v is None else frame.whiten(b)
        product = self.scale**2 * (left * right.conj()).real.sum((-2, -1), keepdim=keepdim)
        return self._output(product, x.dtype, x=x)

    # Moving.

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic; the result is inside for every `u`."""
        z, v = self._inputs(x=x, u=u)
        v = self._restore(v)
        return self._output(self._inside(maps.exponential(z, v, maps.cholesky_factors(z)), x.dtype), x.dtype, x=x)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the initial velocity of the geodesic to `y`, without cancellation near the boundary."""
        w, z = self._inputs(x=x, y=y)
        return self._output(self._restore(maps.logarithm(z, w)), x.dtype, x=x, y=y)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Move by phi_-x(X (I + X^H X)^(-1/2)), X the whitened `u`: inside for every `u`, and `expmap` up to cubes."""
        z, v = self._inputs(x=x, u=u)
        frame = maps.cholesky_factors(z)
        t = frame.whiten(self._restore(v))
        unit = torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)
        step = t @ inv_sqrtm(unit + t.mH @ t)
        return self._output(self._inside(maps.translate_back(step, z, frame), x.dtype), x.dtype, x=x)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic from `x` to `y`."""
        w, z, t = self._inputs(x=x, y=y, v=v)
        moved = maps.transport(w, z, maps.cholesky_factors(w), maps.cholesky_factors(z), t)
        return self._output(self._restore(moved), x.dtype, x=x, y=y)

    def translate(self, x: Tensor, base: Tensor) -> Tensor:
        """Apply phi_base, the transvection that takes `base` to the origin; translate(., -base) is its inverse."""
        z, w = self._inputs(x=x, base=base)
        moved = maps.translate(z, w, maps.hermitian_factors(w))
        return self._output(self._inside(moved, x.dtype), x.dtype, x=x, base=base)

    # Measuring.

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute scale^2 |theta|^2 from the hyperbolic sines of the angles theta."""
        z, w = self._inputs(x=x, y=y)
        square = self._output(self.scale**2 * maps.squared_distance(z, w), x.dtype, x=x, y=y)
        return square[..., None, None] if keepdim else square

    def angles(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the hyperbolic angles theta (the vector-valued distance), descending, shape (..., min(p, q)).

        Invariant under all isometries; scale |theta| is the distance, scale max(theta) the Kobayashi distance and
        scale sum(theta) a Finsler distance. Where angles coincide the gradient is one of the subgradients.
        """
        z, w = self._inputs(x=x, y=y)
        return self._output(maps.angles(z, w), x.dtype, x=x, y=y)

    def kobayashi_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the Kobayashi distance, scale times the largest hyperbolic angle."""
        return self.scale * self.angles(x, y)[..., 0]

    def kobayashi_geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Evaluate the geodesic of the Kobayashi distance that is radial in the spectral norm seen from `x`.

        phi_-x(tanh(t k) / tanh(k) phi_x(y)), k the largest angle: the Riemannian geodesic for 1 x 1 matrices and for
        columns, another curve otherwise. It needs only the largest singular value.
        """
        w, z = self._inputs(x=x, y=y)
        frame = maps.cholesky_factors(w)
        k = maps.angles(z, w)[..., :1, None]
        t = self._over_events(t)
        positive = k > 0
        safe = torch.where(positive, k, torch.ones_like(k))
        ratio = torch.where(positive, torch.tanh(t * safe) / torch.tanh(safe), t * torch.ones_like(k))
        moved = maps.translate_back(ratio * maps.translate(z, w, frame), w, frame)
        return self._output(self._inside(moved, x.dtype), x.dtype, x=x, y=y)

    # Statistics and normalising.

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Karcher mean from the arithmetic mean on; unique on this space. See `Manifold.mean`."""
        self._inputs(x=x)
        points, weights = normalized_weights(x, weights, dim, 2, reduce)
        points, weights = points.to(working_dtype(points)), weights.to(working_dtype(weights))
        start = reduce((self._over_events(weights) * points.detach()).sum(0).detach())
        mean = hadamard_mean(self._frame, points, weights, start, ndim=2, name=self.name, steps=steps, reduce=reduce)
        return self._output(mean, x.dtype, x=x)

    def _frame(self, base: Tensor) -> _BallFrame:
        return _BallFrame(self, base, maps.cholesky_factors(base))

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute the logarithm at the origin of phi_base(x)."""
        z, w = self._inputs(x=x, base=base)
        log = maps.whitened_logarithm(z, w, maps.hermitian_factors(w)).tangent()
        return self._output(self._restore(log), x.dtype, x=x, base=base)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute phi_-base of the exponential of `t` at the origin."""
        v, w = self._inputs(t=t, base=base)
        moved = maps.translate_back(tanhm(self._restore(v)), w, maps.hermitian_factors(w))
        return self._output(self._inside(moved, t.dtype), t.dtype, base=base)

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Rescale with one singular value decomposition for logarithm and exponential; see `Manifold.rescale`."""
        z, m, b = self._inputs(x=x, mean=mean, bias=bias)
        white = maps.whitened_logarithm(z, m, maps.hermitian_factors(m))
        t = white.tangent()
        size = factor(self.scale**2 * (t * t.conj()).real.sum((-2, -1))).expand(t.shape[:-2])
        decomposition = white.polar().scaled(size.detach())
        y = odd(size[..., None, None] * t, Tanh(), decomposition=decomposition)
        moved = maps.translate_back(self._restore(y), b, maps.hermitian_factors(b))
        return self._output(self._inside(moved, x.dtype), x.dtype, x=x, mean=mean, bias=bias)


class BallLogarithms(NamedTuple):
    """Logarithms U theta V^H in a frame; the roots are differences and sums of the angles, and the angles alone."""

    tangent: Tensor
    polar: SingularDecomposition

    @property
    def largest_root(self) -> Tensor:
        """Twice the largest angle."""
        return 2 * self.polar.values[..., 0]

    def hessian(self) -> Callable[[Tensor], Tensor]:
        """Return the map that multiplies by x coth(x), x the roots, in the singular bases."""
        left, angles, right = self.polar
        a, b = angles.unsqueeze(-1), angles.unsqueeze(-2)
        same, opposite, alone = x_coth(a - b), x_coth(a + b), x_coth(angles)
        straight, mirrored = (same + opposite) / 2, (same - opposite) / 2
        p, q = left.shape[-2], right.shape[-2]

        def apply(direction: Tensor) -> Tensor:
            rows = left.mH @ direction
            inner = rows @ right
            result = left @ (straight * inner + mirrored * inner.mH) @ right.mH
            if q > p:
                result = result + left @ (alone.unsqueeze(-1) * (rows - inner @ right.mH))
            if p > q:
                result = result + (direction @ right - left @ inner) * alone.unsqueeze(-2) @ right.mH
            return result

        return apply


class _BallFrame(NamedTuple):
    """A Cholesky frame at a point of a matrix ball."""

    ball: MatrixBall
    base: Tensor
    factors: maps.Factors

    def logarithms(self, points: Tensor) -> BallLogarithms:
        white = maps.whitened_logarithm(points, self.base, self.factors)
        return BallLogarithms(white.tangent(), white.polar())

    def exponential(self, tangent: Tensor) -> Tensor:
        moved = maps.translate_back(tanhm(tangent), self.base, self.factors)
        return self.ball._inside(moved, moved.dtype)

    def pull(self, gradient: Tensor) -> Tensor:
        return self.factors.left.mH @ self.ball._restore(gradient) @ self.factors.right


class SiegelDisk(MatrixBall):
    """The complex symmetric n x n matrices with singular values below one, totally geodesic in the matrix ball.

    Parameters
    ----------
    scale : float
        1 (the default): Frobenius product at the origin, geomstats' convention. 2: geoopt's distance, and the
        affine-invariant distance of Y for points iY of the upper half space.

    Examples
    --------
    >>> disk = SiegelDisk(scale=2.0)
    >>> point = disk.from_upper_half_space(2j * torch.eye(2, dtype=torch.complex128))
    >>> disk.dist(disk.origin(2, 2, dtype=point.dtype), point)
    tensor(0.9803, dtype=torch.float64)
    """

    name = "the Siegel disk"

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two equal dimensions."""
        super().check_event_shape(shape, name)
        if shape[-1] != shape[-2]:
            raise ValueError(
                f"{name} must hold square matrices for {self.name}, got shape {tuple(shape)}; MatrixBall takes others"
            )

    def dimension(self, *event_shape: int) -> int:
        """Return the real dimension, n (n + 1)."""
        n = event_shape[0]
        return n * (n + 1)

    def _restore(self, z: Tensor) -> Tensor:
        return 0.5 * (z + z.mT)

    def _inputs(self, **named: Tensor) -> tuple[Tensor, ...]:
        raised = super()._inputs(**named)
        tolerance = default_tolerance(next(iter(named.values())).dtype)
        for (name, x), z in zip(named.items(), raised):
            # Tangent vectors and gradients may be unsymmetric by right, and are symmetrised; points may not.
            if name in ("x", "y", "base", "mean", "bias") and holds_somewhere(self._asymmetry(z) > tolerance):
                self.assert_check_point_on_manifold(x.detach(), name)
        return raised

    @staticmethod
    def _asymmetry(z: Tensor) -> Tensor:
        """Return the largest real or imaginary part of z - z^T, over the whole batch."""
        if not z.numel():
            return z.new_zeros((), dtype=z.real.dtype)
        z = z.detach()
        return torch.view_as_real(z - z.mT).abs().amax()

    def is_plausible(self, x: Tensor) -> Tensor:
        """Return False also where a matrix is not symmetric."""
        plausible = super().is_plausible(x)
        return plausible & ((x - x.mT).abs().amax() <= default_tolerance(x.dtype)) if x.numel() else plausible

    def _point_violations(self, x: Tensor) -> list[Violation]:
        self.require_complex(x)
        scale = x.abs().flatten(-2).amax(-1)
        asymmetry = (x - x.mT).abs().flatten(-2).amax(-1)
        return [Violation("symmetric, but max |x - x^T|", asymmetry, scale), *super()._point_violations(x)]

    def to_upper_half_space(self, x: Tensor) -> Tensor:
        """Apply the Cayley map i (I + Z) (I - Z)^-1; symmetric with positive definite imaginary part.

        With `scale` = 2 it is an isometry onto the metric tr(Y^-1 dX Y^-1 dX + Y^-1 dY Y^-1 dY) of X + iY.
        """
        (z,) = self._inputs(x=x)
        unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        return self._output(self._restore(1j * torch.linalg.solve(unit - z, unit + z, left=False)), x.dtype, x=x)

    def from_upper_half_space(self, y: Tensor) -> Tensor:
        """Invert the Cayley map: (X - iI) (X + iI)^-1 of symmetric X with positive definite imaginary part."""
        self.require_complex(y, "y")
        self.check_event_shape(tuple(y.shape), "y")
        point = y.to(working_dtype(y))
        asymmetry = (point - point.mT).abs().flatten(-2).amax(-1)
        message = "y{index} must be symmetric to be in the upper half space, but max |y - y^T| is {amount}"
        failed = asymmetry > default_tolerance(y.dtype) * point.abs().flatten(-2).amax(-1)
        point = mask_failed(self._restore(point), failed, asymmetry, message)
        smallest = eigh(point.imag).values[..., 0]
        message = "y{index} must have a positive definite imaginary part, but its smallest eigenvalue is {amount}"
        point = mask_failed(point, ~(smallest > 0), smallest, message)
        unit = 1j * torch.eye(point.shape[-1], dtype=point.dtype, device=point.device)
        return self._inside(torch.linalg.solve(point + unit, point - unit, left=False), y.dtype).to(y.dtype)
