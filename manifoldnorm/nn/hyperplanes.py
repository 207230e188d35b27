"""Distances to hyperbolic hyperplanes, the one nonlinear map in linear, convolution and classification layers.

Everything is in normalised log coordinates t = 2 s u, whose length rho is the distance from the origin in units of
1/sqrt(c). A hyperplane with normal z (length n, direction z^) and offset r has

    a(t) = sinh(rho) <t/rho, z^> cosh(2 s r) - cosh(rho) sinh(2 s r),

the signed sinh-distance, and the score v = (2 n / s) asinh(a). Ganea et al. (NeurIPS 2018) and, in this
parametrisation, Shimizu, Mukuta and Harada, "Hyperbolic neural networks++" (ICLR 2021), equations 6 and 7.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare_fused import differentiate, pieces, stretch_and_time


def unit_normals(z: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the lengths (dimensions kept) and directions of normals, differentiable at zero.

    A length is kept above a tiny floor, the same in both results, so that a filter that starts at zero gets the
    gradient of its score.
    """
    floor = torch.finfo(z.dtype).eps ** 1.5
    norm = safe_norm(z, dims, keepdim=True).clamp_min(floor)
    return norm, z / norm


def signed_sinh_distance(product: Tensor, square: Tensor, offset: Tensor) -> Tensor:
    """Compute a from product = <t, z^>, square = rho^2 and offset = 2 s r."""
    square = square.clamp_max(_largest_square(square.dtype))
    return product * maps.sinhc_of_square(square) * torch.cosh(offset) - maps.cosh_of_square(square) * torch.sinh(
        offset
    )


def hyperplane_scores(product: Tensor, square: Tensor, norm: Tensor, offset: Tensor) -> Tensor:
    """Compute s v = 2 n asinh(a); see `signed_sinh_distance`."""
    a = signed_sinh_distance(product, square, offset)
    return 2 * norm * a * maps.asinhc_of_square(a * a)


def hyperplane_point(
    product: Tensor, square: Tensor, norm: Tensor, offset: Tensor, unit: float | Tensor = 1.0
) -> Tensor:
    """Compute the point whose signed distances to the coordinate hyperplanes are the scores: the layer's output.

    With w_o = sinh(s v_o) it has log coordinates asinh(|w|) w/|w| times `unit`, cut at the largest radius of the dtype.

    Parameters
    ----------
    product : Tensor
        <t, z^_o>, shape (N, O, P); the output vector is axis 1.
    square : Tensor
        rho^2, shape (N, 1, P).
    norm, offset : Tensor
        n_o and 2 s r_o, shape (O, 1).
    unit : float or Tensor
        1 for normalised log coordinates, 1 / (2 s) for plain ones.

    Returns
    -------
    Tensor
        Shape (N, O, P).
    """
    square = square.clamp_max(_largest_square(square.dtype))
    stretch, time = stretch_and_time(square)
    scale = torch.as_tensor(unit, dtype=product.dtype, device=product.device)
    point: Tensor = _HyperplanePoint.apply(product, stretch, time, norm, torch.cosh(offset), torch.sinh(offset), scale)[
        0
    ]
    return point


def _largest_square(dtype: torch.dtype) -> float:
    """Return rho^2 up to which cosh and a product of two of its values are finite."""
    return _largest_score(dtype) ** 2


def _largest_score(dtype: torch.dtype) -> float:
    """Return p up to which sums of sinh(p)^2 are finite: 39 in float32, 319 in float64."""
    return 0.45 * math.log(torch.finfo(dtype).max)


class _HyperplanePoint(torch.autograd.Function):
    """Compute unit asinh(|w|) w/|w| of w_o = sinh(p_o), p_o = 2 n_o d_o, d_o = asinh(S ch_o <t, z^_o> - C sh_o).

    Written by hand because these elementwise steps are most of a layer's time and memory: of the intermediate results
    only d and w are kept, and on the CPU both passes run over pieces that stay in the cache. Scores p are cut where
    their sinh would overflow, three times (in float64 ten times) as far as the result is cut anyway.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        product: Tensor, stretch: Tensor, time: Tensor, norm: Tensor, ch: Tensor, sh: Tensor, unit: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, distance, w = (torch.empty_like(product) for _ in range(3))
        limit = _largest_score(product.dtype)
        for piece, s, t, to_out, to_distance, to_w in zip(
            *(pieces(x, product) for x in (product, stretch, time, out, distance, w))
        ):
            a = (piece * s).mul_(ch).sub_(t * sh)
            d = torch.copysign(_abs_asinh(a), a)
            to_distance.copy_(d)
            sinh = d.mul_(2 * norm).clamp(-limit, limit).sinh_()
            to_w.copy_(sinh)
            to_out.copy_(sinh.mul_(_radial(maps.squared_norm(sinh, 1))[0] * unit))
        return out, distance, w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        product, stretch, time, norm, ch, sh, unit, distance, w = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate(_smooth_point, (product, stretch, time, norm, ch, sh, unit), gradient)
        by_inputs = tuple(torch.empty_like(t) for t in (product, stretch, time))
        by_parameters = [torch.zeros_like(t) for t in (norm, ch, sh, unit)]
        tensors = (gradient, product, stretch, time, distance, w, *by_inputs)
        for g, u, s, t, d, v, *targets in zip(*(pieces(x, product) for x in tensors)):
            found = _gradient_piece(g, u, s, t, d, v, norm, ch, sh, unit)
            for target, value in zip(targets, found[:3]):
                target.copy_(value)
            for total, value in zip(by_parameters, found[3:]):
                total += value
        return *by_inputs, *by_parameters


def _abs_asinh(a: Tensor) -> Tensor:
    """Compute asinh|a|."""
    square = a * a
    return square.div_((square + 1).sqrt_().add_(1)).add_(a.abs()).log1p_()


def _radial(square: Tensor) -> tuple[Tensor, Tensor]:
    """Compute min(asinh(r), R) / r and its derivative by r^2, of r^2.

    The derivative cancels for small r; its error times r^2, which is how it enters, stays at round-off.
    """
    square = square.clamp_min(torch.finfo(square.dtype).tiny ** 0.5)
    norm, hypotenuse = square.sqrt(), (square + 1).sqrt_()
    radius = (square / (hypotenuse + 1)).add_(norm).log1p_()
    bound = maps.largest_radius(square.dtype)
    value = radius.clamp_max(bound) / norm
    return value, ((radius < bound) / hypotenuse).sub_(value).div_(square).mul_(0.5)


def _gradient_piece(
    gradient: Tensor,
    product: Tensor,
    stretch: Tensor,
    time: Tensor,
    distance: Tensor,
    w: Tensor,
    norm: Tensor,
    ch: Tensor,
    sh: Tensor,
    unit: Tensor,
) -> tuple[Tensor, ...]:
    """Differentiate one piece; returns gradients in the order of the inputs."""
    # Deep stacks without a batch norm are chaotic: gradients grow fiftyfold a layer and would end as inf - inf.
    ceiling = torch.finfo(gradient.dtype).max ** 0.4
    gradient = gradient.clamp(-ceiling, ceiling)
    radial, radial_slope = _radial(maps.squared_norm(w, 1))
    along = maps.dot(gradient, w, 1)
    by_w = (gradient * (radial * unit)).addcmul_(w, 2 * unit * radial_slope * along)
    inside = w.abs() < math.sinh(_largest_score(w.dtype)) * (1 - 1e-5)
    by_p = by_w.mul_((w * w).add_(1).sqrt_()).mul_(inside)
    by_norm = 2 * (by_p * distance).sum((0, 2)).unsqueeze(-1)
    scaled = product * stretch
    a = (scaled * ch).sub_(time * sh)
    by_a = by_p.mul_(2 * norm).mul_(a.mul_(a).add_(1).rsqrt_())
    by_time = -torch.bmm(sh.mT.expand(by_a.shape[0], -1, -1), by_a)
    by_sh = -torch.bmm(by_a, time.mT).sum(0)
    by_ch = scaled.mul_(by_a).sum((0, 2)).unsqueeze(-1)
    by_scaled = by_a.mul_(ch)
    by_stretch = maps.dot(by_scaled, product, 1)
    return by_scaled.mul_(stretch), by_stretch, by_time, by_norm, by_ch, by_sh, (radial * along).sum()


def _smooth_point(
    product: Tensor, stretch: Tensor, time: Tensor, norm: Tensor, ch: Tensor, sh: Tensor, unit: Tensor
) -> Tensor:
    """Compute the point by functions that autograd differentiates any number of times."""
    limit = _largest_score(product.dtype)
    w = torch.sinh((2 * norm * torch.asinh(product * stretch * ch - time * sh)).clamp(-limit, limit))
    return w * (maps.cut_asinhc(maps.squared_norm(w, 1), w.dtype) * unit)
