"""Batch normalisation of many float32 hyperbolic points about their gyromidpoint, in few passes over memory.

A boost of u by a fixed point m stays in the span of u and m, with coefficients that depend on |u|^2 and <u, m> only. So
a whole batch norm, boost - scale - boost, is: passes for |u|^2, <u, m>, <u, b>; arithmetic on these few numbers per
point (`poincare_numbers`); one pass for alpha u + beta m + gamma b. Gradients are written by hand; second derivatives
fall back on autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.manifolds import poincare_exact
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.mean import Reduce
from manifoldnorm.manifolds.poincare_columns import (
    combine,
    differentiate,
    from_columns,
    outer,
    products,
    products_with,
    to_columns,
    total,
)
from manifoldnorm.manifolds.poincare_fixed import Ends, ends_of, fixed_point, fixed_point_gradient, log_coordinates
from manifoldnorm.manifolds.poincare_numbers import (
    Moved,
    Pulled,
    Radii,
    Seen,
    Weights,
    coefficients,
    move,
    pull,
    pull_further,
    radii_gradient,
    radii_of,
    see,
)


def normalize(
    u: Tensor,
    bias: Tensor,
    weight: Tensor,
    c: float | Tensor,
    *,
    eps: float,
    count: Tensor | int,
    reduce: Reduce,
) -> tuple[Tensor, Tensor, Tensor]:
    """Move the gyromidpoint of float32 points to the origin, scale, and move the origin to a bias.

    Parameters
    ----------
    u : Tensor
        Log coordinates, shape (..., n).
    bias : Tensor
        Log coordinates, shape (n,), cut at the largest radius of their dtype.
    weight : Tensor
        Scalar s; the factor is s / sqrt(v + eps), v the mean squared distance to the midpoint.
    c : float or Tensor
        Curvature.
    eps : float
        As above.
    count : int or Tensor
        Number of points, of all processes.
    reduce : callable
        Sums a tensor over processes.

    Returns
    -------
    tuple of Tensor
        Log coordinates like `u`; the midpoint's, float64, and v, both without gradients.
    """
    k = torch.as_tensor(4 * c, device=u.device).double()
    result, mean, variance = _Normalize.call(to_columns(u), bias, weight, k, eps, count, reduce)[:3]
    return from_columns(result, u), mean, variance


def rescale(u: Tensor, mean: Tensor, bias: Tensor, factor: Tensor, c: float | Tensor) -> Tensor:
    """Compute bias (+) factor ((-mean) (+) u) for float32 points (..., n), fixed points (n,) and a scalar factor."""
    k = torch.as_tensor(4 * c, device=u.device).double()
    return from_columns(_Rescale.call(to_columns(u), mean, bias, factor, k)[0], u)


def squared_distances(u: Tensor, mean: Tensor, c: float | Tensor) -> Tensor:
    """Compute the sum of the squared distances of float32 points (..., n) to a point (n,), in float64."""
    k = torch.as_tensor(4 * c, device=u.device).double()
    distances: Tensor = _SquaredDistances.call(to_columns(u), mean, k)[0]
    return distances


# Numbers per point.


class _Numbers(NamedTuple):
    """The numbers of the points."""

    radii: Radii
    seen: Seen
    moved: Moved


def _flat(numbers: _Numbers) -> tuple[Tensor, ...]:
    return tuple(tensor for part in numbers for tensor in part)


def _unflat(tensors: Sequence[Tensor]) -> _Numbers:
    first, second = len(Radii._fields), len(Radii._fields) + len(Seen._fields)
    return _Numbers(Radii(*tensors[:first]), Seen(*tensors[first:second]), Moved(*tensors[second:]))


# Passes, forward.


def _look(exact: Tensor, radii: Radii, ends: Ends, dtype: torch.dtype) -> tuple[Seen, Tensor]:
    """Look at points from the mean; the second result is the sum of rho^2."""
    with_mean, with_bias = products(ends.basis, exact)
    return see(radii, with_mean, with_bias, ends.mean_time, ends.k, dtype)


Coefficients = tuple[Tensor, Tensor, Tensor]


def _coefficients(numbers: _Numbers, ends: Ends) -> Coefficients:
    _, bias_time, k = ends.rounded
    return coefficients(numbers.seen, numbers.moved, k / (1 + bias_time))


def _result(u: Tensor, factors: Coefficients, ends: Ends) -> Tensor:
    """Combine points, mean and bias."""
    return combine([(factors[0], u)], factors[1:], ends.basis)


# Passes, backward.


class _ByEnds(NamedTuple):
    """Gradients by M, M0, B and B0."""

    mean: Tensor
    mean_time: Tensor
    bias: Tensor
    bias_time: Tensor


def _pull_further(
    exact: Tensor,
    gradient: Tensor,
    numbers: _Numbers,
    factors: Coefficients,
    p: Pulled,
    by_squares: Tensor,
    ends: Ends,
) -> tuple[Weights, _ByEnds]:
    """Differentiate back to the numbers per point and the ends."""
    (r, s, m), k = numbers, ends.k
    w = pull_further(r, s, m, p, by_squares, ends.rounded[0], ends.mean_time, k)
    by_gram = -total(p.by_within * p.tau, s.along)
    by_basis = (
        outer([w.by_mean, w.by_bias], exact) + outer(factors[1:], gradient.double()) + by_gram * ends.basis.flip(0)
    )
    along = total(w.by_along * r.stretch, s.with_mean) * k / (1 + ends.mean_time) ** 2
    within = total(p.by_along_bias, m.with_bias) * k / (1 + ends.bias_time) ** 2
    by_mean_time, by_bias_time = total(w.by_excess, r.time) + along, total(p.by_result, m.time) - within
    return w, _ByEnds(by_basis[0], by_mean_time, by_basis[1], by_bias_time)


def _by_points(
    u: Tensor,
    exact: Tensor,
    gradient: Tensor,
    r: Radii,
    factors: Coefficients,
    w: Weights,
    ends: Ends,
    by_sums: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the gradient by u; by_sums = gradients by the sums of S u and of C."""
    by_stretch, by_time, rows, vectors = w.by_stretch, w.by_time, [w.by_mean, w.by_bias], ends.basis
    if by_sums is not None:
        by_stretch = by_stretch + products(by_sums[0][None], exact)[0]
        by_time, rows = by_time + by_sums[1], [*rows, r.stretch]
        vectors = torch.cat([vectors, by_sums[0][None]])
    by_square = radii_gradient(r, by_stretch, by_time, u.dtype)
    return combine([(factors[0], gradient), (by_square.mul_(2 * ends.k), u)], rows, vectors)


def _by_k(k: Tensor, scaled: list[tuple[Tensor, Tensor]], gradient: Tensor, result: Tensor) -> Tensor:
    """Return the gradient by k from Euler's identity, with the gradients by all else that has a length.

    Results grow like the lengths of points and weights where k shrinks like 1 / length^2.
    """
    growth = torch.stack([(x * by_x.double()).sum() for x, by_x in scaled]).sum()
    return (growth - (result * gradient.double()).sum()) / (2 * k)


# About the midpoint.


class _Mean(NamedTuple):
    """The midpoint of sums of S u and C: velocity sum / sum, spatial coordinates and time."""

    velocity: Tensor
    spatial: Tensor
    time: Tensor
    total_time: Tensor


def _mean(exact: Tensor, radii: Radii, k: Tensor, reduce: Reduce, dtype: torch.dtype) -> _Mean:
    time = reduce(radii.time.sum())
    velocity = reduce(outer([radii.stretch], exact)[0]) / time
    bound = math.tanh(maps.largest_radius(dtype)) ** 2
    mean_time = torch.rsqrt(1 - (k * torch.dot(velocity, velocity)).clamp_max(bound))
    return _Mean(velocity, velocity * mean_time, mean_time, time)


def _mean_gradient(mean: _Mean, k: Tensor, by_mean: Tensor, by_time: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients by the sums of S u and of C."""
    velocity, cube = mean.velocity, mean.time**3
    by_mean_time = (torch.dot(by_mean, velocity) + by_time) * cube
    by_velocity = by_mean * mean.time + by_mean_time * k * velocity
    by_spatial = by_velocity / mean.total_time
    return by_spatial, -torch.dot(by_spatial, velocity)


class _Normalize(BatchedFunction):
    """See `normalize`; k = 4 c. After the results come the numbers that the backward pass needs."""

    @staticmethod
    def forward(
        u: Tensor, bias: Tensor, weight: Tensor, k: Tensor, eps: float, count: Tensor | int, reduce: Reduce
    ) -> tuple[Tensor, ...]:
        exact = u.double()
        radii = radii_of(maps.squared_norm(exact, 1).mul_(k), u.dtype)
        mean = _mean(exact, radii, k, reduce, u.dtype)
        ends = ends_of(mean.spatial, mean.time, fixed_point(bias, k), k)
        seen, sums = _look(exact, radii, ends, u.dtype)
        variance = reduce(sums) * 4 / (k * count)
        moved = move(seen, (weight * torch.rsqrt(variance + eps)).to(u.dtype), *ends.rounded)
        numbers = _Numbers(radii, seen, moved)
        result = _result(u, _coefficients(numbers, ends), ends)
        return (result, log_coordinates(mean.spatial, k), variance, *mean, *_flat(numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], *output[2:])
        ctx.settings = inputs[4:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 7
        u, bias, weight, k, variance, *rest = ctx.saved_tensors
        eps, count, reduce = ctx.settings
        if torch.is_grad_enabled():

            def function(u: Tensor, bias: Tensor, weight: Tensor, k: Tensor) -> Tensor:
                return poincare_exact.normalized(u, bias, weight, k, eps, count, reduce)

            return (*differentiate(function, (u, bias, weight, k), gradient), None, None, None)
        mean, numbers, point = _Mean(*rest[:4]), _unflat(rest[4:]), fixed_point(bias, k)
        ends = ends_of(mean.spatial, mean.time, point, k)
        pulled, by_factor = pull(numbers.seen, numbers.moved, products_with(u, ends.basis, gradient), *ends.rounded)
        slope = torch.rsqrt(variance + eps)
        by_variance = by_factor * weight * slope**3 / -2
        by_squares = reduce(by_variance) * 4 / (k * count)
        factors = _coefficients(numbers, ends)
        rounded, exact = by_squares.to(u.dtype), u.double()
        weights, by = _pull_further(exact, gradient, numbers, factors, pulled, rounded, ends)
        by_spatial, by_time = _mean_gradient(mean, k, by.mean, by.mean_time)
        by_u = _by_points(
            u, exact, gradient, numbers.radii, factors, weights, ends, (reduce(by_spatial), reduce(by_time))
        )
        by_bias = fixed_point_gradient(point, k, u.dtype, by.bias, by.bias_time)
        by_weight, by_k = by_factor * slope, None
        if ctx.needs_input_grad[3]:
            scaled = [(u, by_u), (bias, by_bias), (weight, by_weight), (2 * by_variance, torch.full_like(k, eps))]
            by_k = _by_k(k, scaled, gradient, _result(u, factors, ends))
        return by_u, by_bias.to(bias.dtype), by_weight.to(weight.dtype), by_k, None, None, None


# About a given point.


class _SquaredDistances(BatchedFunction):
    """See `squared_distances`; k = 4 c. After the result come the numbers that the backward pass needs."""

    @staticmethod
    def forward(u: Tensor, mean: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        start, exact = fixed_point(mean, k), u.double()
        radii = radii_of(maps.squared_norm(exact, 1).mul_(k), u.dtype)
        seen, squares = _look(exact, radii, ends_of(start.spatial, start.time, start, k), torch.float64)
        return squares * 4 / k, *radii, seen.with_mean, seen.rho / seen.sinh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 3
        u, mean, k, squares, *numbers, with_mean, ratio = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate(poincare_exact.squared_distances, (u, mean, k), gradient)
        radii = Radii(*numbers)
        start, by_excess = fixed_point(mean, k), ratio * (8 * gradient / k)
        by_inner = by_excess * -k
        by_square = radii_gradient(radii, by_inner * with_mean, by_excess * start.time, u.dtype)
        by_product = by_inner.mul_(radii.stretch)
        by_u = combine([(by_square.mul_(2 * k), u)], [by_product], start.spatial[None])
        by_spatial, by_time = outer([by_product], u.double())[0], total(by_excess, radii.time)
        by_mean, by_k = fixed_point_gradient(start, k, u.dtype, by_spatial, by_time), None
        if ctx.needs_input_grad[2]:
            by_k = (total(u.double(), by_u.double()) + torch.dot(start.log, by_mean) - 2 * gradient * squares) / (2 * k)
        return by_u, by_mean.to(mean.dtype), by_k


class _Rescale(BatchedFunction):
    """See `rescale`; k = 4 c. After the result come the numbers that the backward pass needs."""

    @staticmethod
    def forward(u: Tensor, mean: Tensor, bias: Tensor, factor: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        start = fixed_point(mean, k)
        ends = ends_of(start.spatial, start.time, fixed_point(bias, k), k)
        exact = u.double()
        radii = radii_of(maps.squared_norm(exact, 1).mul_(k), u.dtype)
        seen, _ = _look(exact, radii, ends, u.dtype)
        numbers = _Numbers(radii, seen, move(seen, factor.to(u.dtype), *ends.rounded))
        return (_result(u, _coefficients(numbers, ends), ends), *_flat(numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 5
        inputs, numbers = ctx.saved_tensors[:5], _unflat(ctx.saved_tensors[5:])
        if torch.is_grad_enabled():
            return differentiate(poincare_exact.rescaled, inputs, gradient)
        u, mean, bias, factor, k = inputs
        start, end = fixed_point(mean, k), fixed_point(bias, k)
        ends = ends_of(start.spatial, start.time, end, k)
        pulled, by_factor = pull(numbers.seen, numbers.moved, products_with(u, ends.basis, gradient), *ends.rounded)
        factors = _coefficients(numbers, ends)
        zero, exact = torch.zeros_like(k, dtype=u.dtype), u.double()
        weights, by = _pull_further(exact, gradient, numbers, factors, pulled, zero, ends)
        by_u = _by_points(u, exact, gradient, numbers.radii, factors, weights, ends)
        by_mean = fixed_point_gradient(start, k, u.dtype, by.mean, by.mean_time)
        by_bias, by_k = fixed_point_gradient(end, k, u.dtype, by.bias, by.bias_time), None
        if ctx.needs_input_grad[4]:
            scaled = [(u, by_u), (mean, by_mean), (bias, by_bias)]
            by_k = _by_k(k, scaled, gradient, _result(u, factors, ends))
        return by_u, by_mean.to(mean.dtype), by_bias.to(bias.dtype), by_factor.to(factor.dtype), by_k
