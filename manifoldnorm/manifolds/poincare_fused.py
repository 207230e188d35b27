"""Statistics and normalisation of many float32 hyperbolic points in few passes over memory.

A boost of u by a fixed point m stays in the span of u and m, with coefficients that depend on |u|^2 and <u, m> only. So
a whole batch norm, boost - scale - boost, is: one pass for |u|^2, <u, m>, <u, b>; arithmetic on these few numbers per
point; one pass for alpha u + beta m + gamma b. The numbers are float64 where cosh rho_m cosh rho_u - <M, U> - 1 cancels
like e^(2 rho). Gradients are written by hand and recompute the numbers, so that little more than u is kept; second
derivatives fall back on autograd.

Inside, points are columns: u has shape (N, n, P), a number per point (N, 1, P). On a CPU the passes run over pieces
that fit in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps

# rho^2 beyond which a float32 point is not on the chart any more and sums would overflow.
_LARGEST_SQUARE = 300.0**2


def pieces(x: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Split along the batch into pieces of about 32 Ki entries of `like`; whole where there is no cache to fit into."""
    if like.device.type != "cpu" or torch.compiler.is_compiling() or like.shape[0] == 0:
        return (x,)
    return torch.split(x, max(1, 32768 // max(1, like.shape[1] * like.shape[2])))


def _by_piece(u: Tensor, *tensors: Tensor) -> Any:
    """Iterate over pieces of u and of tensors with the same batch."""
    return zip(*(pieces(x, u) for x in (u, *tensors)))


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


# The passes over memory.


def _gram(u: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return |u|^2, shape (N, 1, P), and <u, m_i>, shape (N, i, P), in float64."""
    square = u.new_empty(u.shape[0], 1, u.shape[2], dtype=torch.float64)
    product = u.new_empty(u.shape[0], basis.shape[0], u.shape[2], dtype=torch.float64)
    for piece, to_square, to_product in _by_piece(u, square, product):
        exact = piece.double()
        to_product.copy_(torch.matmul(basis, exact))
        to_square.copy_(maps.squared_norm(exact, 1))
    return square, product


def _combine(u: Tensor, scale: Tensor, weights: Tensor, basis: Tensor) -> Tensor:
    """Return scale u + sum_i weight_i m_i for scale (N, 1, P), weights (N, i, P) and basis (i, n), all in u's dtype."""
    result, columns = torch.empty_like(u), basis.mT
    for piece, s, w, target in _by_piece(u, scale, weights, result):
        target.copy_(torch.baddbmm(piece * s, columns.expand(len(w), -1, -1), w))
    return result


def _products(g: Tensor, u: Tensor, basis: Tensor) -> Tensor:
    """Return <g, u> and <g, m_i>, shape (N, 1 + i, P)."""
    result = u.new_empty(u.shape[0], 1 + basis.shape[0], u.shape[2])
    for piece, other, target in _by_piece(u, g, result):
        target[:, :1].copy_(maps.dot(piece, other, 1))
        target[:, 1:].copy_(torch.matmul(basis, other))
    return result


def _outer(weights: Tensor, u: Tensor) -> Tensor:
    """Return sum over points of weight_i u, shape (i, n), in float64."""
    total = u.new_zeros(weights.shape[1], u.shape[1], dtype=torch.float64)
    for piece, w in _by_piece(u, weights):
        total += torch.matmul(w.double(), piece.double().mT).sum(0)
    return total


# Radial functions, with one formula for all arguments.


def _positive(q: Tensor) -> Tensor:
    return q.clamp_min(torch.finfo(q.dtype).tiny ** 0.5)


def _stretch_time(q: Tensor) -> tuple[Tensor, Tensor]:
    rho = _positive(q).sqrt_()
    return torch.sinh(rho).div_(rho), rho.cosh_()


def _stretch_time_gradient(q: Tensor, stretch: Tensor, time: Tensor, by_stretch: Tensor, by_time: Tensor) -> Tensor:
    """Differentiate by q.

    The slope (cosh - sinhc)/(2 q) cancels for small q; it always meets a factor q, so the error stays at round-off.
    """
    return (time - stretch).div_(_positive(q)).mul_(by_stretch).addcmul_(stretch, by_time).mul_(0.5)


def _asinhc(q: Tensor) -> Tensor:
    square = _positive(q)
    r = square.sqrt()
    return square.div_((square + 1).sqrt_().add_(1)).add_(r).log1p_().div_(r)


def _asinhc_slope(q: Tensor, value: Tensor) -> Tensor:
    return (q + 1).rsqrt_().sub_(value).div_(_positive(q)).mul_(0.5)


class _StretchTime(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor) -> tuple[Tensor, Tensor]:
        return _stretch_time(q)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, by_stretch: Tensor, by_time: Tensor) -> Tensor:
        q, stretch, time = ctx.saved_tensors
        if torch.is_grad_enabled():
            exact = maps.sinhc_of_square(q), maps.cosh_of_square(q)
            return torch.autograd.grad(exact, q, (by_stretch, by_time), create_graph=True)[0]
        return _stretch_time_gradient(q, stretch, time, by_stretch, by_time)


def stretch_and_time(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return sinh(rho)/rho and cosh(rho) of q = rho^2, faster than the power series of `poincare_maps`."""
    stretch, time = _StretchTime.apply(q)
    return stretch, time


def differentiate(function: Callable[..., Any], inputs: tuple[Tensor, ...], gradients: Any) -> tuple[Any, ...]:
    """Differentiate `function` by autograd so that the result can be differentiated again."""
    # Aliases, since one input may depend on another.
    aliases = [t.view_as(t) for t in inputs]
    needed = [t for t in aliases if t.requires_grad]
    found = iter(torch.autograd.grad(function(*aliases), needed, gradients, create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


# Sums on the hyperboloid, for midpoints.


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(u: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        square, _ = _gram(u, u.new_empty(0, u.shape[1], dtype=torch.float64))
        stretch, time = _stretch_time((square * k).clamp_max_(_LARGEST_SQUARE))
        return _outer(stretch, u).squeeze(0), time.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_total: Tensor, by_time: Tensor) -> tuple[Any, ...]:
        u, k = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate(_exact_sums, (u, k), (by_total, by_time))
        row, small_k = by_total.to(u.dtype)[None], k.to(u.dtype)
        products = _products(u, u, row)
        square, along = products[:, :1], products[:, 1:]
        q = (square * small_k).clamp_max_(30.0**2)
        stretch, time = _stretch_time(q)
        by_q = _stretch_time_gradient(q, stretch, time, along, by_time.to(u.dtype))
        by_k = (by_q * square).sum().to(k.dtype)
        return _combine(u, by_q.mul_(2 * small_k), stretch, row), by_k


def _exact_sums(u: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    exact = u.double()
    stretch, time = maps.clipped_hyperboloid(k * maps.squared_norm(exact, 1))
    return (stretch * exact).sum((0, 2)), time.sum()


def hyperboloid_sums(u: Tensor, c: float | Tensor) -> tuple[Tensor, Tensor]:
    """Sum sinh(rho) u/|u| / (2 s) and cosh(rho) over float32 points (..., n), in float64."""
    k = torch.as_tensor(4 * c, device=u.device).double()
    total, time = _Sums.apply(to_columns(u), k)
    return total, time


# Boost, scale, boost.


class _Seen(NamedTuple):
    """Numbers per point of (-m) (+) u, in float64; Z = stretch u - k_mean m is its spatial part divided by 2 s."""

    square: Tensor
    with_mean: Tensor
    with_bias: Tensor
    stretch: Tensor
    time: Tensor
    inner: Tensor
    k_mean: Tensor
    excess: Tensor
    shrink: Tensor


def _see(u: Tensor, basis: Tensor, k: Tensor, mean_stretch: Tensor, mean_time: Tensor) -> _Seen:
    square, product = _gram(u, basis)
    with_mean, with_bias = product[:, :1], product[:, 1:]
    stretch, time = _stretch_time(k * square)
    inner = (stretch * with_mean).mul_(k * mean_stretch)
    k_mean = (time - inner / (1 + mean_time)).mul_(mean_stretch)
    excess = (mean_time * time).sub_(inner).sub_(1)
    shrink = _asinhc(excess * (excess + 2))
    return _Seen(square, with_mean, with_bias, stretch, time, inner, k_mean, excess, shrink)


class _Translate(torch.autograd.Function):
    """Return rho^2 of (-m) (+) u, and stretch, k_mean, <u, b>, all (N, 1, P), for basis = (m, b) and k = 4 c."""

    @staticmethod
    def forward(
        u: Tensor, basis: Tensor, k: Tensor, mean_stretch: Tensor, mean_time: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        seen = _see(u, basis, k, mean_stretch, mean_time)
        rho_square = seen.excess * (seen.excess + 2) * seen.shrink**2
        results = (rho_square, seen.stretch, seen.k_mean, seen.with_bias)
        first, second, third, fourth = (t.to(u.dtype) for t in results)
        return first, second, third, fourth

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        u, basis, k, mean_stretch, mean_time = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate(_exact_translate, ctx.saved_tensors, gradients)
        seen = _see(u, basis, k, mean_stretch, mean_time)
        by_square, by_mean, by_bias, *by_numbers = _translate_gradient(seen, gradients, k, mean_stretch, mean_time)
        weights = torch.cat([by_mean.to(u.dtype), by_bias], 1)
        by_u = _combine(u, by_square.mul_(2).to(u.dtype), weights, basis.to(u.dtype))
        return by_u, _outer(weights, u), *by_numbers


def _translate_gradient(
    seen: _Seen, incoming: tuple[Tensor, ...], k: Tensor, mean_stretch: Tensor, mean_time: Tensor
) -> tuple[Tensor, ...]:
    """Differentiate the outputs of `_Translate` by |u|^2, <u, m> and <u, b>, and by k, mean_stretch and mean_time."""
    by_rho_square, by_stretch, by_k_mean = (t.double() for t in incoming[:3])
    excess, shrink, inner = seen.excess, seen.shrink, seen.inner
    sinh_square = excess * (excess + 2)
    by_sinh_square = by_rho_square * (shrink * (shrink + 2 * sinh_square * _asinhc_slope(sinh_square, shrink)))
    by_excess = by_sinh_square * (2 * (excess + 1))
    share = mean_stretch / (1 + mean_time)
    by_inner = -(by_excess + by_k_mean * share)
    by_time = by_excess * mean_time + by_k_mean * mean_stretch
    by_stretch = by_stretch + by_inner * seen.with_mean * (k * mean_stretch)
    by_mean = by_inner * seen.stretch * (k * mean_stretch)
    q = k * seen.square
    by_q = _stretch_time_gradient(q, seen.stretch, seen.time, by_stretch, by_time)
    along = (by_inner * inner).sum()
    total_stretch = (along + (by_k_mean * seen.k_mean).sum()) / mean_stretch
    total_time = (by_excess * seen.time).sum() + (by_k_mean * inner).sum() * share / (1 + mean_time)
    return by_q * k, by_mean, incoming[3], along / k + (by_q * seen.square).sum(), total_stretch, total_time


def _exact_translate(
    u: Tensor, basis: Tensor, k: Tensor, mean_stretch: Tensor, mean_time: Tensor
) -> tuple[Tensor, ...]:
    exact = u.double()
    product = torch.matmul(basis, exact)
    square = k * maps.squared_norm(exact, 1)
    stretch, time = maps.sinhc_of_square(square), maps.cosh_of_square(square)
    inner = k * mean_stretch * stretch * product[:, :1]
    excess = mean_time * time - inner - 1
    sinh_square = excess * (excess + 2)
    rho_square = sinh_square * maps.asinhc_of_square(sinh_square) ** 2
    k_mean = mean_stretch * (time - inner / (1 + mean_time))
    return tuple(t.to(u.dtype) for t in (rho_square, stretch, k_mean, product[:, 1:]))


class _Moved(NamedTuple):
    """Numbers per point of b (+) f Z; W = tau Z has time `time`, <B, W> is `beside`, and `out` divides by sinh."""

    stretch: Tensor
    time: Tensor
    shrink: Tensor
    tau: Tensor
    within: Tensor
    beside: Tensor
    k_bias: Tensor
    sinh_square: Tensor
    out: Tensor
    far: Tensor


def _move(
    rho_square: Tensor, stretch: Tensor, k_mean: Tensor, with_bias: Tensor, factor: Tensor, numbers: Tensor
) -> _Moved:
    """Compute them; numbers = (k, stretch of b, time of b, k <m, b>)."""
    k, bias_stretch, bias_time, gram = numbers
    scaled, time = _stretch_time(rho_square * factor**2)
    rho = _positive(rho_square).sqrt_()
    shrink = rho / torch.sinh(rho)
    tau = scaled * shrink * factor
    within = (stretch * with_bias).mul_(k).sub_(k_mean * gram)
    beside = tau * within * bias_stretch
    k_bias = (beside / (1 + bias_time)).add_(time).mul_(bias_stretch)
    excess = (bias_time * time).add_(beside).sub_(1)
    sinh_square = excess * (excess + 2)
    value = _asinhc(sinh_square)
    bound = maps.largest_radius(value.dtype)
    limit = bound * _positive(sinh_square).rsqrt_()
    return _Moved(
        scaled, time, shrink, tau, within, beside, k_bias, sinh_square, torch.minimum(value, limit), limit < value
    )


class _Rescale(torch.autograd.Function):
    """Return out (tau (stretch u - k_mean m) + k_bias b) for the outputs of `_Translate`."""

    @staticmethod
    def forward(
        u: Tensor,
        rho_square: Tensor,
        stretch: Tensor,
        k_mean: Tensor,
        with_bias: Tensor,
        factor: Tensor,
        basis: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        moved = _move(rho_square, stretch, k_mean, with_bias, factor, numbers)
        return _combine(u, *_coefficients(moved, stretch, k_mean), basis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return differentiate(_exact_rescale, ctx.saved_tensors, gradient)
        u, rho_square, stretch, k_mean, with_bias, factor, basis, numbers = ctx.saved_tensors
        moved = _move(rho_square, stretch, k_mean, with_bias, factor, numbers)
        scale, weights = _coefficients(moved, stretch, k_mean)
        products = _products(gradient, u, basis).split(1, 1)
        by_points, by_numbers = _rescale_gradient(
            moved, products, rho_square, stretch, k_mean, with_bias, factor, numbers
        )
        by_u = _combine(gradient, scale, weights[:, :0], basis[:0])
        by_factor = by_points[4].sum_to_size(factor.shape)
        return by_u, *by_points[:4], by_factor, _outer(weights, gradient).to(basis.dtype), by_numbers


def _coefficients(moved: _Moved, stretch: Tensor, k_mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return what u, and (m, b), are multiplied with."""
    scale = moved.out * moved.tau
    return scale * stretch, torch.cat([-scale * k_mean, moved.out * moved.k_bias], 1)


def _rescale_gradient(
    moved: _Moved,
    products: tuple[Tensor, ...],
    rho_square: Tensor,
    stretch: Tensor,
    k_mean: Tensor,
    with_bias: Tensor,
    factor: Tensor,
    numbers: Tensor,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Differentiate by the numbers per point and the factor, and by `numbers`; products = <g, u>, <g, m>, <g, b>."""
    k, bias_stretch, bias_time, gram = numbers
    with_u, with_m, with_b = products
    out, tau = moved.out, moved.tau
    by_spatial = with_u * stretch - with_m * k_mean
    by_out = by_spatial * tau + with_b * moved.k_bias
    by_k_bias, by_tau, by_scale = with_b * out, by_spatial * out, out * tau
    sinh_square = moved.sinh_square
    slope = torch.where(moved.far, -0.5 * out / _positive(sinh_square), _asinhc_slope(sinh_square, out))
    by_excess = by_out * slope * 2 * (bias_time * moved.time + moved.beside)
    by_beside = by_excess + by_k_bias * (bias_stretch / (1 + bias_time))
    by_time = by_excess * bias_time + by_k_bias * bias_stretch
    by_tau = by_tau + by_beside * moved.within * bias_stretch
    by_within = by_beside * tau * bias_stretch
    by_stretch = with_u * by_scale + by_within * with_bias * k
    by_k_mean = -(with_m * by_scale + by_within * gram)
    x = rho_square * factor**2
    by_x = _stretch_time_gradient(x, moved.stretch, moved.time, by_tau * factor * moved.shrink, by_time)
    by_factor = by_tau * moved.stretch * moved.shrink + 2 * factor * rho_square * by_x
    # d(rho / sinh rho) / d rho^2 from sinh, as for its inverse
    inverse, cosh = _stretch_time(rho_square)
    by_shrink = by_tau * factor * moved.stretch
    by_rho_square = factor**2 * by_x - by_shrink * moved.shrink**2 * (cosh - inverse) / (2 * _positive(rho_square))
    totals = torch.stack(
        [
            (by_within * stretch * with_bias).sum(),
            (by_k_bias * moved.k_bias + by_beside * moved.beside).sum() / bias_stretch,
            (by_excess * moved.time - by_k_bias * moved.beside * (bias_stretch / (1 + bias_time) ** 2)).sum(),
            -(by_within * k_mean).sum(),
        ]
    )
    return (by_rho_square, by_stretch, by_k_mean, by_within * stretch * k, by_factor), totals


def _exact_rescale(
    u: Tensor,
    rho_square: Tensor,
    stretch: Tensor,
    k_mean: Tensor,
    with_bias: Tensor,
    factor: Tensor,
    basis: Tensor,
    numbers: Tensor,
) -> Tensor:
    k, bias_stretch, bias_time, gram = numbers
    x = rho_square * factor**2
    time = maps.cosh_of_square(x)
    tau = factor * maps.sinhc_of_square(x) / maps.sinhc_of_square(rho_square)
    beside = tau * bias_stretch * (k * stretch * with_bias - k_mean * gram)
    k_bias = bias_stretch * (beside / (1 + bias_time) + time)
    excess = bias_time * time + beside - 1
    out = maps.cut_asinhc(excess * (excess + 2), u.dtype)
    return out * (tau * (stretch * u - k_mean * basis[0, :, None]) + k_bias * basis[1, :, None])


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
    columns = to_columns(u)
    basis = torch.stack([mean, bias]).double()
    k = torch.as_tensor(4 * c, device=u.device).double()
    gram = k * basis @ basis.mT
    mean_stretch, mean_time = stretch_and_time(gram[0, 0])
    rho_square, stretch, k_mean, with_bias = _Translate.apply(columns, basis, k, mean_stretch, mean_time)
    scale = factor(from_columns(rho_square / c, u[..., :1]).squeeze(-1)).to(u.dtype)
    if scale.numel() == 1:
        scale = scale.reshape(1, 1, 1)
    else:
        scale = to_columns(torch.broadcast_to(scale, u.shape[:-1]).unsqueeze(-1))
    numbers = torch.stack([k, *stretch_and_time(gram[1, 1]), gram[0, 1]]).to(u.dtype)
    moved = _Rescale.apply(columns, rho_square, stretch, k_mean, with_bias, scale, basis.to(u.dtype), numbers)
    return from_columns(moved, u)
