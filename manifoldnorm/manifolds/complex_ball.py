"""The unit ball of complex vectors and the Poincaré disk: matrix balls of one column, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.singular import svd
from manifoldnorm.manifolds import matrix_ball_maps as maps
from manifoldnorm.manifolds.bounded_domain import BoundedDomain, inside_margin
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.hadamard_mean import hadamard_mean
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.siegel import BallLogarithms


def _hermitian(u: Tensor, v: Tensor) -> Tensor:
    """Compute sum u conj(v), the last dimension kept."""
    return (u * v.conj()).sum(-1, keepdim=True)


def _gap(z: Tensor) -> Tensor:
    """Compute 1 - |z|^2, the last dimension kept, to full relative accuracy; NaN outside the ball."""
    exact = _one_minus_squares(torch.view_as_real(z.detach()).flatten(-2))
    plain = 1 - _hermitian(z, z).real
    gap = plain + (exact - plain.detach())  # the value of the one, the gradient of the other
    return torch.where(exact > 0, gap, torch.nan)


def _one_minus_squares(x: Tensor) -> Tensor:
    """Compute 1 - sum x^2 over the last dimension without rounding what cancels.

    Each square is split into a part on a fixed grid, whose sum is exact, and a remainder (Dekker's exact product).
    """
    digits = 53 if x.dtype == torch.float64 else 24
    scaled = x * (2 ** (digits // 2 + 1) + 1)
    high = scaled - (scaled - x)
    low = x - high
    square = x * x
    error = ((high * high - square) + 2 * high * low) + low * low
    shift = 1.5 * 2.0 ** (digits // 2)
    coarse = (square + shift) - shift
    return (1 - coarse.sum(-1, keepdim=True)) - (square - coarse + error).sum(-1, keepdim=True)


def _one_minus_product(z: Tensor, w: Tensor) -> Tensor:
    """Compute 1 - <z, w> from gaps and the difference d = w - z: 1 - Re is half of three positive terms."""
    difference = w - z
    real = (_gap(z) + _gap(w) + _hermitian(difference, difference).real) / 2
    return torch.complex(real, -_hermitian(z, difference).imag)


def _tanhc(r2: Tensor) -> Tensor:
    """Compute tanh(r) / r from r^2, smooth at zero."""
    small = r2 < 1e-2
    guarded = torch.sqrt(torch.where(small, torch.ones_like(r2), r2))
    x = torch.where(small, r2, torch.zeros_like(r2))
    terms = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875)
    series = torch.zeros_like(x)
    for term in reversed(terms):
        series = series * x + term
    return torch.where(small, series, torch.tanh(guarded) / guarded)


class _Sine(NamedTuple):
    """The hyperbolic angle theta between two points through q = sinh(theta)^2, smooth at q = 0."""

    square: Tensor

    def _split(self) -> tuple[Tensor, Tensor, Tensor]:
        small = self.square < 1e-2
        guarded = torch.where(small, torch.ones_like(self.square), self.square)
        return small, torch.where(small, self.square, torch.zeros_like(self.square)), guarded

    def log_factor(self) -> Tensor:
        """Compute theta / (sinh(theta) cosh(theta))."""
        small, x, guarded = self._split()
        series = torch.zeros_like(x)
        for k in range(9, -1, -1):  # asinh(s) / (s sqrt(1 + s^2)) = sum (-1)^k (2^k k!)^2 / (2k + 1)! s^2k
            series = 1 - x * (2 * k + 2) / (2 * k + 3) * series
        root = torch.sqrt(guarded)
        return torch.where(small, series, torch.asinh(root) / (root * torch.sqrt(1 + guarded)))

    def angle_square(self) -> Tensor:
        """Compute theta^2."""
        small, _, guarded = self._split()
        # theta^2 = q (1 + q) log_factor^2 has no root, so it is smooth at zero.
        near = self.square * (1 + self.square) * self.log_factor() ** 2
        return torch.where(small, near, torch.asinh(torch.sqrt(guarded)) ** 2)


class ComplexBall(BoundedDomain):
    """The unit ball of C^p, a symmetric space with sectional curvature in [-4, -1] / scale^2.

    The case of one column of `MatrixBall`, with formulas that need no decomposition. With <u, v> = sum u conj(v) its
    metric is scale^2 [ |u|^2 / (1 - |z|^2) + |<u, z>|^2 / (1 - |z|^2)^2 ].

    Parameters
    ----------
    scale : float
        1 (the default): curvature in [-4, -1], geomstats' convention; 2: in [-1, -1/4].

    Notes
    -----
    Points are complex tensors of shape (..., p). The distance is scale theta with
    sinh(theta)^2 = (|z - w|^2 (1 - |z|^2) + |<z - w, z>|^2) / ((1 - |z|^2)(1 - |w|^2)), a sum of positive terms; it is
    also the Kobayashi distance. Rudin (1980) for the automorphisms.

    Examples
    --------
    >>> ball = ComplexBall()
    >>> z = torch.tensor([0.3 + 0.4j, 0.0], dtype=torch.complex128)
    >>> ball.dist(ball.origin(2, dtype=z.dtype), z)
    tensor(0.5493, dtype=torch.float64)
    """

    name = "the complex unit ball"
    ndim = 1

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in a positive dimension."""
        super().check_event_shape(shape, name)
        if shape[-1] == 0:
            raise ValueError(f"{name} must hold vectors with entries, shape (..., p), got shape {tuple(shape)}")

    def dimension(self, *event_shape: int) -> int:
        """Return the real dimension, 2 p."""
        return 2 * event_shape[0]

    def _inside(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        """Shrink a computed point where round-off put it on the boundary or beyond."""
        limit = 1 - inside_margin(dtype, z.shape[-1])
        return z * (limit / safe_norm(z.detach(), keepdim=True)).clamp(max=1.0)

    def _point_violations(self, x: Tensor) -> list[Violation]:
        self.require_complex(x)
        norm = safe_norm(x.to(working_dtype(x)))
        limit = 1 - inside_margin(norm.dtype, x.shape[-1]) / 2
        return [Violation("inside, but its norm", norm, failed=~(norm < limit))]

    def is_plausible(self, x: Tensor) -> Tensor:
        """Return False for a real tensor or where a norm is not below one; see `Manifold.is_plausible`."""
        if not x.is_complex() or not x.numel():
            return super().is_plausible(x) & torch.as_tensor(x.is_complex())
        return torch.linalg.vector_norm(x.detach(), dim=-1).amax() < 1

    # Points and tangent vectors.

    def projx(self, x: Tensor) -> Tensor:
        """Lower norms above 1 - `projection_margin` to that."""
        (z,) = self._inputs(x=x)
        norm = safe_norm(z, keepdim=True)
        limit = 1 - self.projection_margin(x.dtype)
        outside = norm > limit
        return torch.where(outside, z * (limit / torch.where(outside, norm, torch.ones_like(norm))), z).to(x.dtype)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the vector, broadcast against `x`: all vectors are tangent."""
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute (1 - |z|^2) (g - z <g, z>) / scale^2."""
        z, g = self._inputs(x=x, u=u)
        return (_gap(z) * (g - z * _hermitian(g, z)) / self.scale**2).to(x.dtype)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute scale^2 Re [ <u, v> / (1 - |z|^2) + <u, z> <z, v> / (1 - |z|^2)^2 ]."""
        z, a, b = self._inputs(x=x, u=u, v=u if v is None else v)
        gap = _gap(z)
        product = (_hermitian(a, b) + _hermitian(a, z) * _hermitian(z, b) / gap).real / gap
        product = product * self.scale**2
        return self._output(product if keepdim else product.squeeze(-1), x.dtype, x=x)

    # Moving.

    def _root(self, w: Tensor) -> Tensor:
        return torch.sqrt(_gap(w))

    def _exp(self, w: Tensor, v: Tensor) -> Tensor:
        """Compute w + tau v / (1 + tau <v, w> / (1 - |w|^2)) with tau = tanh(r) / r, r the length of v."""
        gap = _gap(w)
        along = _hermitian(v, w) / gap
        length = (_hermitian(v, v).real + gap * (along * along.conj()).real) / gap
        tau = _tanhc(length)
        return w + tau * v / (1 + tau * along)

    def _sine(self, z: Tensor, w: Tensor) -> _Sine:
        difference = z - w
        along = _hermitian(difference, z)
        gap = _gap(z)
        numerator = _hermitian(difference, difference).real * gap + (along * along.conj()).real
        return _Sine(numerator / (gap * _gap(w)))

    def _log(self, w: Tensor, z: Tensor) -> Tensor:
        """Compute theta / (sinh(theta) cosh(theta)) (z - w) (1 - <w, z>) / (1 - |z|^2)."""
        return self._sine(z, w).log_factor() * (z - w) * _one_minus_product(w, z) / _gap(z)

    def _whiten(self, w: Tensor, v: Tensor) -> Tensor:
        """Take a tangent vector at w to the origin by the differential of phi_w."""
        root = self._root(w)
        return (v + w * _hermitian(v, w) / (root * (1 + root))) / root

    def _color(self, w: Tensor, t: Tensor) -> Tensor:
        """Invert `_whiten`."""
        root = self._root(w)
        return root * (t - w * _hermitian(t, w) / (1 + root))

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic; the result is inside for every `u`."""
        z, v = self._inputs(x=x, u=u)
        return self._output(self._inside(self._exp(z, v), x.dtype), x.dtype, x=x)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the initial velocity of the geodesic to `y`, without cancellation near the boundary."""
        w, z = self._inputs(x=x, y=y)
        return self._output(self._log(w, z), x.dtype, x=x, y=y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic from `x` to `y`."""
        w, z, t = self._inputs(x=x, y=y, v=v)
        w, z, t = (part.unsqueeze(-1) for part in (w, z, t))
        moved = maps.transport(w, z, maps.cholesky_factors(w), maps.cholesky_factors(z), t).squeeze(-1)
        return self._output(moved, x.dtype, x=x, y=y)

    def translate(self, x: Tensor, base: Tensor) -> Tensor:
        """Apply phi_base, the automorphism that takes `base` to the origin; translate(., -base) is its inverse."""
        z, w = self._inputs(x=x, base=base)
        root = self._root(w)
        difference = z - w
        moved = root * difference + w * _hermitian(difference, w) / (1 + root)
        return self._output(self._inside(moved / _one_minus_product(z, w), x.dtype), x.dtype, x=x, base=base)

    # Measuring.

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute scale^2 theta^2."""
        z, w = self._inputs(x=x, y=y)
        square = self.scale**2 * self._sine(z, w).angle_square()
        return self._output(square if keepdim else square.squeeze(-1), x.dtype, x=x, y=y)

    def kobayashi_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the Kobayashi distance, which is the geodesic one here."""
        return self.dist(x, y)

    def kobayashi_geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Evaluate the geodesic of the Kobayashi distance, which is the Riemannian one here."""
        return self.geodesic(x, y, t)

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
        points, weights = normalized_weights(x, weights, dim, 1, reduce)
        points, weights = points.to(working_dtype(points)), weights.to(working_dtype(weights))
        start = reduce((self._over_events(weights) * points.detach()).sum(0).detach())
        mean = hadamard_mean(self._frame, points, weights, start, ndim=1, name=self.name, steps=steps, reduce=reduce)
        return self._output(mean, x.dtype, x=x)

    def _frame(self, base: Tensor) -> _VectorFrame:
        return _VectorFrame(self, base)

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute the logarithm at the origin of phi_base(x)."""
        z, w = self._inputs(x=x, base=base)
        return self._output(self._whiten(w, self._log(w, z)), x.dtype, x=x, base=base)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute phi_-base of the exponential of `t` at the origin."""
        v, w = self._inputs(t=t, base=base)
        return self._output(self._inside(self._exp(w, self._color(w, v)), t.dtype), t.dtype, base=base)


class _VectorLogarithms(NamedTuple):
    """Logarithms of vectors in a frame, seen as matrices of one column."""

    tangent: Tensor

    def _columns(self) -> BallLogarithms:
        columns = self.tangent.detach().unsqueeze(-1)
        return BallLogarithms(columns, svd(columns))

    @property
    def largest_root(self) -> Tensor:
        return self._columns().largest_root

    def hessian(self) -> Callable[[Tensor], Tensor]:
        apply = self._columns().hessian()
        return lambda direction: apply(direction.unsqueeze(-1)).squeeze(-1)


class _VectorFrame(NamedTuple):
    """The frame of phi_base at a point of the complex ball."""

    ball: ComplexBall
    base: Tensor

    def logarithms(self, points: Tensor) -> _VectorLogarithms:
        return _VectorLogarithms(self.ball._whiten(self.base, self.ball._log(self.base, points)))

    def exponential(self, tangent: Tensor) -> Tensor:
        moved = self.ball._exp(self.base, self.ball._color(self.base, tangent))
        return self.ball._inside(moved, moved.dtype)

    def pull(self, gradient: Tensor) -> Tensor:
        # The differential of phi_base^-1 is Hermitian up to the root, so it is its own adjoint.
        return self.ball._color(self.base, gradient)


class PoincareDisk(ComplexBall):
    """The unit disk of the complex plane with the Poincaré metric scale^2 |dz|^2 / (1 - |z|^2)^2.

    Parameters
    ----------
    scale : float
        1 (the default): curvature -4, geomstats' convention for Siegel spaces; 2: curvature -1, the usual Poincaré
        disk and `PoincareBall(c=1)` of two real coordinates.

    Notes
    -----
    Points are complex tensors of shape (..., 1).

    Examples
    --------
    >>> disk = PoincareDisk(scale=2.0)
    >>> disk.dist(torch.tensor([0.3 + 0.4j]), torch.tensor([-0.2 + 0.1j]))
    tensor(1.2902)
    """

    name = "the Poincaré disk"

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in a dimension of size one."""
        super().check_event_shape(shape, name)
        if shape[-1] != 1:
            raise ValueError(
                f"{name} must have a last dimension of size one for {self.name}, got shape {tuple(shape)}; "
                f"use {name}.unsqueeze(-1), or ComplexBall for vectors"
            )
