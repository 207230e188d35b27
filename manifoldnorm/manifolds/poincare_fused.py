"""Statistics and normalisation of many hyperbolic points in few passes over memory.

A boost of u by a fixed point m stays in the span of u and m, with coefficients that depend on |u|^2 and <u, m> only. So
a whole batch norm, boost - scale - boost, is: one pass for |u|^2, <u, m> and <u, b>; arithmetic on these few numbers
per point; one pass for alpha u + beta m + gamma b. The numbers are kept in float64, because cosh rho_x cosh rho_u - <X,
U> - 1 cancels like e^(2 rho).

Points are float32 here; the pieces in which the passes run fit in the cache of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps

_PIECE = 32768


def pieces(x: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Split along the batch into pieces of about 32 Ki entries of `like`; whole where there is no cache to fit into."""
    if like.device.type != "cpu" or torch.compiler.is_compiling() or like.shape[0] == 0:
        return (x,)
    return torch.split(x, max(1, _PIECE // max(1, like.shape[1] * like.shape[2])))


def to_columns(u: Tensor) -> Tensor:
    """View points (..., n) as (N, n, P), without a copy when they are a channels-first image seen channels-last."""
    if u.ndim <= 2:
        return u.reshape(-1, u.shape[-1]).mT.unsqueeze(0)
    return u.movedim(-1, 1).flatten(2)


def from_columns(x: Tensor, like: Tensor) -> Tensor:
    """Invert `to_columns`; `like` has the original shape."""
    if like.ndim <= 2:
        return x.squeeze(0).mT.reshape(like.shape)
    return x.unflatten(2, like.shape[1:-1]).movedim(1, -1)


class _Gram(torch.autograd.Function):
    """Compute |u|^2, shape (N, 1, P), and <u, m_k>, shape (N, k, P), in float64 for u (N, n, P) and m (k, n)."""

    @staticmethod
    def forward(u: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        square = u.new_empty(u.shape[0], 1, u.shape[2], dtype=torch.float64)
        product = u.new_empty(u.shape[0], basis.shape[0], u.shape[2], dtype=torch.float64)
        for piece, to_square, to_product in zip(*(pieces(x, u) for x in (u, square, product))):
            exact = piece.double()
            to_product.copy_(torch.matmul(basis, exact))
            to_square.copy_(maps.squared_norm(exact, 1))
        return square, product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_square: Tensor, by_product: Tensor) -> tuple[Tensor, Tensor]:
        u, basis = ctx.saved_tensors
        return _Combine.apply(u, 2 * by_square, by_product, basis), _Outer.apply(by_product, u)


class _Combine(torch.autograd.Function):
    """Compute scale u + sum_k weight_k m_k for scale (N, 1, P), weight (N, k, P), m (k, n), in the dtype of u."""

    @staticmethod
    def forward(u: Tensor, scale: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
        out, columns = torch.empty_like(u), basis.mT.to(u.dtype)
        for piece, s, w, target in zip(*(pieces(x, u) for x in (u, scale, weight, out))):
            target.copy_(torch.baddbmm(piece * s.to(u.dtype), columns.expand(len(w), -1, -1), w.to(u.dtype)))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        u, scale, weight, basis = ctx.saved_tensors
        empty = basis[:0]
        by_u = _Combine.apply(gradient, scale, weight[:, :0], empty)
        by_scale, by_weight = _Products.apply(gradient, u, basis)
        return by_u, by_scale.to(scale.dtype), by_weight.to(weight.dtype), _Outer.apply(weight, gradient)


class _Outer(torch.autograd.Function):
    """Compute sum over points of weight_k u, shape (k, n), in float64."""

    @staticmethod
    def forward(weight: Tensor, u: Tensor) -> Tensor:
        total = weight.new_zeros(weight.shape[1], u.shape[1], dtype=torch.float64)
        for w, piece in zip(*(pieces(x, u) for x in (weight, u))):
            total += torch.matmul(w.double(), piece.double().mT).sum(0)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weight, u = ctx.saved_tensors
        by_weight = _Gram.apply(u, gradient)[1].to(weight.dtype)
        zero = torch.zeros_like(weight[:, :1])
        return by_weight, _Combine.apply(u, zero, weight, gradient)


class _Products(torch.autograd.Function):
    """Compute <g, u>, shape (N, 1, P), and <g, m_k>, shape (N, k, P), for g, u (N, n, P) and m (k, n)."""

    @staticmethod
    def forward(g: Tensor, u: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        product = u.new_empty(u.shape[0], 1, u.shape[2])
        others = u.new_empty(u.shape[0], basis.shape[0], u.shape[2])
        rows = basis.to(u.dtype)
        for gp, up, to_product, to_others in zip(*(pieces(x, u) for x in (g, u, product, others))):
            to_product.copy_(maps.dot(gp, up, 1))
            to_others.copy_(torch.matmul(rows, gp))
        return product, others

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_product: Tensor, by_others: Tensor) -> tuple[Tensor, ...]:
        g, u, basis = ctx.saved_tensors
        by_u = _Combine.apply(g, by_product, by_others[:, :0], basis[:0])
        return _Combine.apply(u, by_product, by_others, basis), by_u, _Outer.apply(by_others, g)


class _StretchTime(torch.autograd.Function):
    """Compute sinh(rho)/rho and cosh(rho) of q = rho^2, with one formula for all q.

    The derivative (cosh - sinhc)/(2 q) cancels for small q; it always meets a factor q, so that its error stays at
    round-off. Second derivatives go through the power series of `poincare_maps`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor) -> tuple[Tensor, Tensor]:
        rho = _positive(q).sqrt_()
        return torch.sinh(rho).div_(rho), rho.cosh_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, by_stretch: Tensor, by_time: Tensor) -> Tensor:
        q, stretch, time = ctx.saved_tensors
        if torch.is_grad_enabled():
            exact = maps.sinhc_of_square(q), maps.cosh_of_square(q)
            return torch.autograd.grad(exact, q, (by_stretch, by_time), create_graph=True)[0]
        return (time - stretch).div_(_positive(q)).mul_(by_stretch).addcmul_(stretch, by_time).mul_(0.5)


class _Asinhc(torch.autograd.Function):
    """Compute asinh(r)/r of q = r^2, with one formula for all q; see `_StretchTime`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor) -> Tensor:
        square = _positive(q)
        r = square.sqrt()
        return square.div_((square + 1).sqrt_().add_(1)).add_(r).log1p_().div_(r)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        q, value = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch.autograd.grad(maps.asinhc_of_square(q), q, gradient, create_graph=True)[0]
        return (q + 1).rsqrt_().sub_(value).div_(_positive(q)).mul_(gradient).mul_(0.5)


def stretch_and_time(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return sinh(rho)/rho and cosh(rho) of q = rho^2, faster than the power series of `poincare_maps`."""
    stretch, time = _StretchTime.apply(q)
    return stretch, time


def _positive(q: Tensor) -> Tensor:
    return q.clamp_min(torch.finfo(q.dtype).tiny ** 0.5)


class _HyperboloidSums(torch.autograd.Function):
    """Sum sinh(rho) u/|u| / (2 s), shape (n,), and cosh(rho) over points u (N, n, P), given the scalar 4 c; float64."""

    @staticmethod
    def forward(u: Tensor, four_c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        stretch, time = (u.new_empty(u.shape[0], 1, u.shape[2], dtype=torch.float64) for _ in range(2))
        total = u.new_zeros(u.shape[1], 1, dtype=torch.float64)
        for piece, to_stretch, to_time in zip(*(pieces(x, u) for x in (u, stretch, time))):
            exact = piece.double()
            s, t = _StretchTime.forward((four_c * maps.squared_norm(exact, 1)).clamp_max(_LARGEST_SQUARE))
            total += torch.matmul(exact, s.mT).sum(0)
            to_stretch.copy_(s)
            to_time.copy_(t)
        return total.squeeze(-1), time.sum(), stretch, time

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs, *output[2:])

    @staticmethod
    def backward(ctx: Any, by_total: Tensor, by_time: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        u, four_c, stretch, time = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _sums_gradient(u, four_c, by_total, by_time)
        by_u, by_c = torch.empty_like(u), u.new_zeros((), dtype=torch.float64)
        row = by_total.to(u.dtype)
        for piece, s, t, target in zip(*(pieces(x, u) for x in (u, stretch, time, by_u))):
            square = maps.squared_norm(piece, 1)
            slope = ((t - s) / _positive(four_c * square.double())).mul_(torch.matmul(row, piece).unsqueeze(1))
            by_q = slope.addcmul_(s, by_time).mul_(0.5)
            by_c += (by_q * square).sum()
            scale = (2 * four_c * by_q).to(u.dtype)
            target.copy_(torch.addcmul(piece * scale, row[:, None], s.to(u.dtype)))
        return by_u, by_c.to(four_c.dtype)


# rho^2 beyond which a float32 point is not on the chart any more and sums would overflow.
_LARGEST_SQUARE = 300.0**2


def _sums_gradient(u: Tensor, four_c: Tensor, by_total: Tensor, by_time: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate by autograd, for second and higher derivatives."""
    exact = u.double()
    stretch, time = maps.clipped_hyperboloid(four_c * maps.squared_norm(exact, 1))
    inputs = [t for t in (u, four_c) if t.requires_grad]
    sums = (stretch * exact).sum((0, 2)), time.sum()
    found = iter(torch.autograd.grad(sums, inputs, (by_total, by_time), create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in (u, four_c))  # type: ignore[return-value]


def hyperboloid_sums(u: Tensor, c: float | Tensor) -> tuple[Tensor, Tensor]:
    """Sum sinh(rho) u/|u| / (2 s) and cosh(rho) over float32 points (..., n), in float64."""
    total, time, *_ = _HyperboloidSums.apply(to_columns(u), torch.as_tensor(4 * c, device=u.device))
    return total, time


def rescale(u: Tensor, mean: Tensor, bias: Tensor, c: float | Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute bias (+) factor(d2) ((-mean) (+) u) for float32 points (..., n) and fixed points (n,).

    Parameters
    ----------
    u, mean, bias : Tensor
        Log coordinates.
    c : float or Tensor
        Curvature.
    factor : callable
        Maps squared distances to the mean, of the batch shape, to factors that broadcast with it.
    """
    basis = torch.stack([mean, bias]).double()
    columns = to_columns(u)
    square, product = _Gram.apply(columns, basis)
    with_mean, with_bias = product[:, :1], product[:, 1:]
    gram = 4 * c * (basis @ basis.mT)
    (mean_stretch, mean_time), (bias_stretch, bias_time) = (stretch_and_time(gram[i, i]) for i in range(2))

    # Z = stretch u - k mean, the spatial part of (-mean) (+) u, divided by 2 s like every vector here.
    stretch, time = stretch_and_time(4 * c * square)
    inner = 4 * c * mean_stretch * stretch * with_mean
    k = mean_stretch * (time - inner / (1 + mean_time))
    excess = mean_time * time - inner - 1
    sinh_square = excess * (excess + 2)
    shrink = _Asinhc.apply(sinh_square)
    rho_square = sinh_square * shrink**2
    scale = factor(_per_point(rho_square / c, u).to(u.dtype))
    scale = torch.broadcast_to(scale, u.shape[:-1]).unsqueeze(-1).to(torch.float64)
    scale = to_columns(scale)

    # W = tau Z is the same point at `scale` times the distance.
    scaled_stretch, scaled_time = stretch_and_time(scale**2 * rho_square)
    tau = scale * scaled_stretch * shrink
    beside = tau * (4 * c * bias_stretch * stretch * with_bias - k * bias_stretch * gram[0, 1])
    k_bias = bias_stretch * (beside / (1 + bias_time) + scaled_time)
    excess = bias_time * scaled_time + beside - 1
    sinh_square = excess * (excess + 2)
    out = _Asinhc.apply(sinh_square)
    radius = out * torch.sqrt(_positive(sinh_square))
    out = out * (maps.largest_radius(u.dtype) / radius.clamp_min(maps.largest_radius(u.dtype)))
    return from_columns(
        _Combine.apply(columns, out * tau * stretch, torch.cat([-out * tau * k, out * k_bias], 1), basis), u
    )


def _per_point(x: Tensor, u: Tensor) -> Tensor:
    """Bring (N, 1, P) to the batch shape of points u."""
    return from_columns(x, u[..., :1]).squeeze(-1)
