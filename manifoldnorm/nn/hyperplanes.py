"""Distances to hyperbolic hyperplanes, the one nonlinear map in linear, convolution and classification layers.

Everything is in normalised log coordinates t = 2 s u, whose length rho is the distance from the origin in units of
1/sqrt(c). A hyperplane with normal z (length n, direction z^) and offset r has

    a(t) = sinh(rho) <t/rho, z^> cosh(2 s r) - cosh(rho) sinh(2 s r),

the signed sinh-distance, and the score v = (2 n / s) asinh(a). Ganea et al. (NeurIPS 2018) and, in this
parametrisation, Shimizu, Mukuta and Harada, "Hyperbolic neural networks++" (ICLR 2021), equations 6 and 7.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare_columns import differentiate, stretch_and_time


class Hyperplanes(NamedTuple):
    """Filters z^ cosh(2 s r) times a scale, in the shape of z, and 2 n and -sinh(2 s r), shape (O, 1)."""

    filters: Tensor
    twice_norm: Tensor
    minus_sh: Tensor


def hyperplanes(z: Tensor, r: Tensor | None, twice_s: float | Tensor, scale: float | Tensor) -> Hyperplanes:
    """Prepare hyperplanes for `hyperplane_point` and `hyperplane_scores`.

    Parameters
    ----------
    z : Tensor
        Normals, shape (O, ...).
    r : Tensor, optional
        Offsets, shape (O,); zero by default.
    twice_s, scale : float or Tensor
        2 sqrt(c), and what the filters are multiplied with.

    Notes
    -----
    The length of a normal is kept above a tiny floor, the same in both places where it enters, so that a filter that
    starts at zero gets the gradient of its score.
    """
    r = z.new_zeros(len(z)) if r is None else r
    twice_s, scale = (torch.as_tensor(x, dtype=z.dtype, device=z.device) for x in (twice_s, scale))
    return Hyperplanes(*_Hyperplanes.call(z, r, twice_s, scale))


def _least_norm(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps ** 1.5)


class _Hyperplanes(BatchedFunction):
    @staticmethod
    def forward(z: Tensor, r: Tensor, twice_s: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, offset = z.flatten(1), (twice_s * r).unsqueeze(1)
        norm = (rows * rows).sum(1, keepdim=True).sqrt_().clamp_min(_least_norm(z.dtype))
        return (rows * (scale * torch.cosh(offset) / norm)).view_as(z), 2 * norm, -torch.sinh(offset)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, by_filters: Tensor, by_twice_norm: Tensor, by_minus_sh: Tensor) -> tuple[Any, ...]:
        inputs, (filters, twice_norm, minus_sh) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if torch.is_grad_enabled():
            return differentiate(_prepared, inputs, (by_filters, by_twice_norm, by_minus_sh))
        z, r, twice_s, scale = inputs
        rows, norm = z.flatten(1), twice_norm / 2
        ch = (minus_sh * minus_sh + 1).sqrt_()
        # By the logarithm of the filters' common factor, scale ch / n.
        by_factor = maps.dot(by_filters.flatten(1), filters.flatten(1), 1)
        above = norm > _least_norm(z.dtype)
        by_norm = (2 * by_twice_norm - by_factor / norm) * above
        by_offset = -by_factor * minus_sh / ch - by_minus_sh * ch
        by_rows = (by_filters.flatten(1) * (scale * ch / norm)).addcmul_(rows, by_norm / norm)
        by_twice_s = torch.dot(by_offset.squeeze(1), r) if ctx.needs_input_grad[2] else None
        by_scale = by_factor.sum() / scale if ctx.needs_input_grad[3] else None
        return by_rows.view_as(z), (by_offset * twice_s).squeeze(1), by_twice_s, by_scale


def _prepared(z: Tensor, r: Tensor, twice_s: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Do what the forward pass does by functions that autograd differentiates any number of times, also at zero."""
    rows, offset = z.flatten(1), (twice_s * r).unsqueeze(1)
    norm = safe_norm(rows, 1, keepdim=True).clamp_min(_least_norm(z.dtype))
    return (rows / norm * (scale * torch.cosh(offset))).view_as(z), 2 * norm, -torch.sinh(offset)


def hyperplane_scores(product: Tensor, stretch: Tensor, time: Tensor, planes: Hyperplanes) -> Tensor:
    """Compute s v = 2 n asinh(a), shape (N, O, P); the arguments are those of `hyperplane_point`."""
    a = product * stretch + time * planes.minus_sh
    return planes.twice_norm * a * maps.asinhc_of_square(a * a)


def hyperplane_point(
    product: Tensor, stretch: Tensor, time: Tensor, planes: Hyperplanes, unit: float | Tensor = 1.0
) -> Tensor:
    """Compute the point whose signed distances to the coordinate hyperplanes are the scores: the layer's output.

    With w_o = sinh(s v_o) it has log coordinates asinh(|w|) w/|w| times `unit`, cut at the largest radius of the dtype.

    Parameters
    ----------
    product : Tensor
        Products <t, z^_o> cosh(2 s r_o) with the filters, shape (N, O, P * R); the output vector is axis 1.
    stretch, time : Tensor
        sinh(rho)/rho and cosh(rho), shape (N, 1, P), equal for all R copies of P.
    planes : Hyperplanes
        See `hyperplanes`; their scale is in the products already.
    unit : float or Tensor
        1 for normalised log coordinates, 1 / (2 s) for plain ones.

    Returns
    -------
    Tensor
        Shape (N, O, P).
    """
    copies = product.shape[2] // max(1, time.shape[2])
    if copies != 1:
        stretch, time = stretch.repeat(1, 1, copies), time.repeat(1, 1, copies)
    scale = torch.as_tensor(unit, dtype=product.dtype, device=product.device)
    point: Tensor = _HyperplanePoint.call(product, stretch, time, planes.twice_norm, planes.minus_sh, scale)[0]
    return point


def stretch_and_time_within(square: Tensor) -> tuple[Tensor, Tensor]:
    """Return sinh(rho)/rho and cosh(rho) of rho^2, cut where they and products of two would overflow."""
    return stretch_and_time(square.clamp_max(largest_square(square.dtype)))


def largest_square(dtype: torch.dtype) -> float:
    """Return rho^2 up to which cosh and a product of two of its values are finite."""
    return _largest_score(dtype) ** 2


def _largest_score(dtype: torch.dtype) -> float:
    """Return p up to which sums of sinh(p)^2 are finite: 39 in float32, 319 in float64."""
    return 0.45 * math.log(torch.finfo(dtype).max)


class _HyperplanePoint(BatchedFunction):
    """Compute unit asinh(|w|) w/|w| of w_o = sinh(p_o), p_o = 2 n_o d_o, d_o = asinh(a_o), a_o = S x_o - C sh_o.

    Written by hand because these elementwise steps are most of a layer's time and memory: of the intermediate results
    only d and w are kept, and memory is reused. Where a sinh would overflow, three times (in float64 ten times) as far
    as the result is cut anyway, w is divided by a number.
    """

    @staticmethod
    def forward(
        product: Tensor, stretch: Tensor, time: Tensor, twice_norm: Tensor, minus_sh: Tensor, unit: Tensor
    ) -> tuple[Tensor, ...]:
        a = torch.addcmul(time * minus_sh, product, stretch)
        w = a * a
        distance = (w + 1).sqrt_().add_(1)
        w.div_(distance)
        distance.copy_(a).abs_().add_(w).log1p_().copysign_(a)
        w = _shrunk(w.copy_(distance).mul_(twice_norm), _largest_score(a.dtype)).sinh_()
        radial = _radial(a.copy_(w).mul_(w).sum(1, keepdim=True))
        return a.copy_(w).mul_(radial[0] * unit), distance, w, *radial

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 6
        inputs, saved = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        if torch.is_grad_enabled():
            return differentiate(_smooth_point, inputs, gradient)
        return _point_gradient(gradient, *inputs, *saved)


def _shrunk(p: Tensor, limit: float) -> Tensor:
    """Move the scores of a point towards zero by what its largest one exceeds the limit.

    That multiplies all sinh p_o by one factor, a constant, but for those that are nothing next to the largest.
    """
    constant = p.detach()
    excess = (constant.abs().amax(1, keepdim=True) - limit).clamp_min(0)
    return p - constant.clamp(-excess, excess)


def _radial(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute min(asinh(r), R) / r of r^2, what its derivative by r is times r, and r^2.

    The derivative cancels for small r; its error at most meets a factor 1, so that it stays at round-off. It is not
    divided by r^2, which would underflow for large r.
    """
    square = square.clamp_min(torch.finfo(square.dtype).tiny ** 0.5)
    norm, hypotenuse = square.sqrt(), (square + 1).sqrt_()
    radius = (square / (hypotenuse + 1)).add_(norm).log1p_()
    bound = maps.largest_radius(square.dtype)
    value = radius.clamp_max(bound) / norm
    return value, ((radius < bound) / hypotenuse).sub_(value), square


def _point_gradient(
    gradient: Tensor,
    product: Tensor,
    stretch: Tensor,
    time: Tensor,
    twice_norm: Tensor,
    minus_sh: Tensor,
    unit: Tensor,
    distance: Tensor,
    w: Tensor,
    radial: Tensor,
    bend: Tensor,
    square: Tensor,
) -> tuple[Tensor, ...]:
    """Return gradients in the order of the inputs."""
    # Deep stacks without a batch norm are chaotic: gradients grow fiftyfold a layer and would end as inf - inf.
    ceiling = torch.finfo(gradient.dtype).max ** 0.4
    found = gradient.clamp(-ceiling, ceiling)
    scratch = found * w
    along = scratch.sum(1, keepdim=True)
    found.mul_(radial * unit).addcmul_(w, unit * bend * (along / square))
    # By p; that scores were shrunk has changed a length only that is cut.
    found.mul_(scratch.copy_(w).mul_(w).add_(1).sqrt_())
    by_norm = scratch.copy_(found).mul_(distance).sum((0, 2)).unsqueeze(-1)
    # By a.
    scratch.copy_(minus_sh).mul_(time).addcmul_(product, stretch)
    found.mul_(scratch.mul_(scratch).add_(1).rsqrt_().mul_(twice_norm))
    by_time = torch.bmm(minus_sh.mT.expand(len(found), -1, -1), found)
    by_sh = torch.bmm(found, time.mT).sum(0)
    by_stretch = scratch.copy_(found).mul_(product).sum(1, keepdim=True)
    return found.mul_(stretch), by_stretch, by_time, by_norm, by_sh, (radial * along).sum()


def _smooth_point(
    product: Tensor, stretch: Tensor, time: Tensor, twice_norm: Tensor, minus_sh: Tensor, unit: Tensor
) -> Tensor:
    """Compute the point by functions that autograd differentiates any number of times."""
    limit = _largest_score(product.dtype)
    w = torch.sinh(_shrunk(twice_norm * torch.asinh(product * stretch + time * minus_sh), limit))
    return w * (maps.cut_asinhc(maps.squared_norm(w, 1), w.dtype) * unit)
