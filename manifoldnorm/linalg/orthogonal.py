"""Exponential of skew matrices, logarithm of rotations, and the nearest rotation, for every size.

Closed forms for n = 2 and 3. For larger n the logarithm diagonalises the rotation with Hermitian eigensolvers only:
first its symmetric part, whose eigenvalues are the cosines of the angles; then, within the angles that are far from pi
and within those that are near it, a Hermitian matrix that separates all angles of either kind. So angles near pi keep
their digits, where solving with I + R (Cayley) or the arc cosine would lose them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import pullback
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.rotation3 import axial_vector, cross_matrix, rotation_from_vector, vector_from_rotation

# Where |R^T R - I| exceeds this in an entry, R does not count as a rotation.
_TOLERANCE = 0.1
# Cosines this close to -1 do not tell an angle from pi; a perturbation of this angle then picks a direction of turning.
_UNRESOLVED = 1e-14
_NUDGE = 1e-10


def skew_part(x: Tensor) -> Tensor:
    """Return (x - x^T) / 2 of matrices of shape (..., n, n).

    Examples
    --------
    >>> skew_part(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """
    return 0.5 * (x - x.mT)


def expm_skew(u: Tensor) -> Tensor:
    """Rotations exp(u) of skew matrices.

    Parameters
    ----------
    u : Tensor
        Shape (..., n, n), n >= 2; the skew part is used.

    Returns
    -------
    Tensor
        Of the shape and dtype of `u`; orthogonal to rounding. Differentiable, twice for n > 3 and to any order for
        n <= 3, also at zero.

    Examples
    --------
    >>> expm_skew(torch.zeros(2, 2)) == torch.eye(2)
    tensor([[True, True],
            [True, True]])
    """
    n = u.shape[-1]
    with without_autocast(u):
        wide = u.to(working_dtype(u))
        if n == 2:
            result = _planar_rotation(0.5 * (wide[..., 1, 0] - wide[..., 0, 1]))
        elif n == 3:
            result = rotation_from_vector(axial_vector(wide))
        else:
            result = torch.linalg.matrix_exp(skew_part(wide))
    return result.to(u.dtype)


def _planar_rotation(angle: Tensor) -> Tensor:
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return torch.stack((torch.stack((cosine, -sine), dim=-1), torch.stack((sine, cosine), dim=-1)), dim=-2)


def logm_rotation(r: Tensor) -> Tensor:
    """Skew logarithm of rotation matrices, with all angles in [-pi, pi].

    Parameters
    ----------
    r : Tensor
        Shape (..., n, n), n >= 2. Small deviations from a rotation are ignored: the nearest rotation is meant.

    Returns
    -------
    Tensor
        Exactly skew, of the shape and dtype of `r` (float32 is computed in float64 on the CPU). At an angle of pi,
        where the logarithm is discontinuous, one of its values; for n > 3 angles within 1e-7 of pi are good to 1e-9.
        NaN, alone in its batch, for a reflection or a matrix far from orthogonal. Differentiable twice, also at the
        identity; at an angle of pi the derivative in the directions in which the logarithm jumps counts as zero.

    Examples
    --------
    >>> logm_rotation(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    tensor([[ 0.0000, -1.5708],
            [ 1.5708,  0.0000]])
    """
    n = r.shape[-1]
    with without_autocast(r):
        x = r.to(working_dtype(r))
        if n == 2:
            result = _planar_logarithm(x)
        elif n == 3:
            result = cross_matrix(vector_from_rotation(x))
        else:
            result = _Log.apply(x)[0]
    return result.to(r.dtype)


def _planar_logarithm(r: Tensor) -> Tensor:
    cosine, sine = 0.5 * (r[..., 0, 0] + r[..., 1, 1]), 0.5 * (r[..., 1, 0] - r[..., 0, 1])
    valid = _is_rotation(r.detach())
    angle = torch.atan2(torch.where(valid, sine, torch.nan), cosine)
    zero = torch.zeros_like(angle)
    return torch.stack((torch.stack((zero, -angle), dim=-1), torch.stack((angle, zero), dim=-1)), dim=-2)


def _is_rotation(r: Tensor) -> Tensor:
    identity = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    close = (r.mT @ r - identity).abs().amax((-1, -2)) <= _TOLERANCE
    return close & (torch.linalg.det(torch.where(close[..., None, None], r, identity)) > 0)


def _diagonalize(r: Tensor) -> tuple[Tensor, Tensor]:
    """Return angles t in [-pi, pi], shape (..., n), and unitary W with R = W diag(exp(i t)) W^H."""
    n = r.shape[-1]
    cosines, basis = torch.linalg.eigh(0.5 * (r + r.mT))
    sines = skew_part(basis.mT @ skew_part(r) @ basis)
    far = cosines > _widest_gap(cosines)
    # On the far half log R = A f(S), f(c) = acos(c) / sin(acos(c)), S and A the symmetric and skew parts of R. On the
    # other half the same holds for -R, whose angles are those of R less pi.
    cosine = torch.where(far, cosines, -cosines).clamp(-1, 1)
    sine = torch.sqrt((1 - cosine) * (1 + cosine))
    # Where the sine vanishes the angle equals it; f is 1 there.
    ratio = torch.where(sine > 0, torch.atan2(sine, cosine) / torch.where(sine > 0, sine, 1.0), 1.0)
    root = torch.sqrt(ratio)
    same = far.unsqueeze(-1) == far.unsqueeze(-2)
    one = torch.ones_like(cosines)
    sign = torch.where(far, one, -one).unsqueeze(-1)
    turn = torch.where(same, sign * root.unsqueeze(-1) * sines * root.unsqueeze(-2), 0.0) + _direction_at_pi(cosines)
    # A shift by more than the angles keeps the two halves apart.
    shift = torch.diag_embed(torch.where(far, 0.0, -8 * one))
    values, vectors = torch.linalg.eigh(torch.complex(shift, -turn))
    # Ascending: the near half, shifted by -8, comes first and its lower half turns by a negative residual angle.
    near_count = (~far).sum(-1, keepdim=True)
    index = torch.arange(n, device=r.device)
    near = index < near_count
    pi = torch.where(index < near_count // 2, math.pi * one, -math.pi)
    angles = torch.where(near, values + 8.0 + pi, values)
    return angles, basis.to(vectors.dtype) @ vectors


def _widest_gap(cosines: Tensor) -> Tensor:
    """Return the middle of the widest gap between ascending cosines within [-0.9, 0.5]; it never splits a plane."""
    clamped = cosines.clamp(-0.9, 0.5)
    ends = torch.ones_like(clamped[..., :1])
    edges = torch.cat((-0.9 * ends, clamped, 0.5 * ends), dim=-1)
    gaps = edges[..., 1:] - edges[..., :-1]
    widest = gaps.argmax(-1, keepdim=True)
    return torch.gather(edges[..., :-1] + 0.5 * gaps, -1, widest)


def _direction_at_pi(cosines: Tensor) -> Tensor:
    """Return a small skew matrix that pairs the ascending directions whose cosine is -1 to rounding."""
    first = (cosines[..., :-1] + 1).abs() < _UNRESOLVED
    both = first & ((cosines[..., 1:] + 1).abs() < _UNRESOLVED)
    even = torch.arange(cosines.shape[-1] - 1, device=cosines.device) % 2 == 0
    nudge = torch.where(both & even, _NUDGE * torch.ones_like(cosines[..., 1:]), 0.0)
    return torch.diag_embed(nudge, offset=-1) - torch.diag_embed(nudge, offset=1)


class _Log(torch.autograd.Function):
    """The logarithm with its angles and eigenvectors; gradients at R are tangent there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        valid = _is_rotation(r)
        identity = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
        x = torch.where(valid[..., None, None], r, identity)
        for _ in range(3):
            # The Newton-Schulz step to the nearest rotation; three of them take a deviation of 0.1 to rounding.
            x = 1.5 * x - 0.5 * x @ (x.mT @ x)
        angles, vectors = _diagonalize(x)
        log = skew_part((vectors * torch.complex(torch.zeros_like(angles), angles).unsqueeze(-2) @ vectors.mH).real)
        return torch.where(valid[..., None, None], log, torch.nan), angles, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output)
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        r, log, angles, vectors = ctx.saved_tensors
        return r @ _Pull.apply(log, angles, vectors, skew_part(gradient))


class RotationEigen:
    """Logarithms, angles and eigenvectors of rotations R = W diag(exp(i t)) W^H, for linear maps that they diagonalise.

    Parameters
    ----------
    r : Tensor
        Shape (..., n, n), float32 or float64; carries no gradient.
    """

    def __init__(self, r: Tensor) -> None:
        self.log, self.angles, self.vectors = _Log.forward(r.detach())

    def pull_through_log(self, gradient: Tensor) -> Tensor:
        """Turn skew gradients g at the logarithms into skew Z with <g, dlog> = <Z, R^T dR>."""
        return apply_multiplier(self.vectors, _inverse_differential(self.angles).conj(), gradient)

    def half_cotangent(self) -> Tensor:
        """Return (x / 2) cot(x / 2) for x = t_j - t_k: the Hessian of half the squared distance from the identity."""
        half = 0.5 * (self.angles.unsqueeze(-1) - self.angles.unsqueeze(-2))
        return _inverse_differential(self.angles).abs() * torch.cos(half)


def apply_multiplier(vectors: Tensor, multiplier: Tensor, x: Tensor) -> Tensor:
    """Compute the skew part of W (multiplier o (W^H x W)) W^H."""
    inner = vectors.mH @ x.to(vectors.dtype) @ vectors
    return skew_part((vectors @ (multiplier * inner) @ vectors.mH).real)


def _inverse_differential(angles: Tensor) -> Tensor:
    """Return x / (1 - exp(-i x)) i = exp(i x / 2) / sinc(x / 2), x = t_j - t_k; zero where the logarithm jumps."""
    half = 0.5 * (angles.unsqueeze(-1) - angles.unsqueeze(-2))
    ratio = torch.sinc(half / math.pi)
    regular = ratio.abs() > 1e-7
    size = torch.where(regular, 1 / torch.where(regular, ratio, 1.0), 0.0)
    return torch.complex(size * torch.cos(half), size * torch.sin(half))


class _Pull(torch.autograd.Function):
    """Z = J^-T g for dlog = J^-1 (R^T dR): solves J^T Z = g, which gives its own derivative implicitly."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log: Tensor, angles: Tensor, vectors: Tensor, gradient: Tensor) -> Tensor:
        return apply_multiplier(vectors, _inverse_differential(angles).conj(), gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        log, angles, vectors, solution = ctx.saved_tensors
        direction = apply_multiplier(vectors, _inverse_differential(angles), skew_part(gradient))

        def pairing(at: Tensor) -> Tensor:
            """Compute <exp(-at) Dexp(at)[direction], solution>, whose derivative is minus the one that is wanted."""
            block = torch.cat((torch.cat((at, direction), -1), torch.cat((torch.zeros_like(at), at), -1)), -2)
            n = at.shape[-1]
            exponential = torch.linalg.matrix_exp(block)
            moved = exponential[..., :n, :n].mT @ exponential[..., :n, n:]
            return (moved * solution).sum((-1, -2))

        value, pull = pullback(pairing, log)
        return -skew_part(pull(torch.ones_like(value))[0]), None, None, direction


class _Nearest(torch.autograd.Function):
    """R of X = R P with symmetric P = V diag(s) V^T: dR = R V [(V^T (R^T dX - dX^T R) V) / (s_i + s_j)] V^T."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        finite = torch.isfinite(x).flatten(-2).all(-1)[..., None, None]
        left, values, right = torch.linalg.svd(torch.where(finite, x, 0.0))
        left = torch.where(finite, left, torch.nan)
        # The smallest singular value takes the sign of the determinant.
        sign = torch.sign(torch.linalg.det(left) * torch.linalg.det(right))
        flips = torch.cat((torch.ones_like(values[..., 1:]), sign.unsqueeze(-1)), dim=-1)
        return (left * flips.unsqueeze(-2)) @ right, values * flips, right

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        rotation, values, right = ctx.saved_tensors
        rotated = right @ (2 * skew_part(rotation.mT @ gradient)) @ right.mT
        sums = values.unsqueeze(-1) + values.unsqueeze(-2)
        solved = torch.where(sums > 0, rotated / torch.where(sums > 0, sums, 1.0), 0.0)
        return rotation @ (right.mT @ solved @ right)


def nearest_rotation(x: Tensor) -> Tensor:
    """Rotation nearest to each matrix in the Frobenius norm (Procrustes, with determinant one).

    Parameters
    ----------
    x : Tensor
        Shape (..., n, n). A matrix that is not finite gives NaN, alone in its batch.

    Returns
    -------
    Tensor
        Of the shape and dtype of `x` (float32 is computed in float64 on the CPU); differentiable once. Not unique
        where the two smallest singular values are equal and the determinant is negative; one of the nearest then.

    Examples
    --------
    >>> nearest_rotation(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    with without_autocast(x):
        result: Tensor = _Nearest.apply(x.to(working_dtype(x)))[0]
    return result.to(x.dtype)
