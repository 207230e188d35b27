"""Rotations of three-space as matrices, unit quaternions and rotation vectors, with scipy's conventions.

A quaternion is (x, y, z, w), scalar last; q and -q are the same rotation. A rotation vector is the axis times the angle
in [0, pi]. All matrices act on columns. A matrix that is a rotation up to small errors counts as the nearest rotation;
one that is far from it gives NaN, alone in its batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.rotation import turning_coefficients

# Row-major entries of R -> row-major entries of the symmetric matrix K - I, where K = 4 q q^T for a rotation.
_QUADRATIC = torch.tensor(
    (
        (1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1),
        (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, -1, 0, 0, -1, 0),
        (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0),
        (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0),
        (-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1),
        (0, 0, 0, -1, 0, 0, 1, 0, 0, 1, 0, 0, -1, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0, -1, 1, 0, 0, 0, 0, -1, 0, 0),
        (0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0),
        (-1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
    ),
    dtype=torch.float64,
    device="cpu",
)
_HAT = torch.tensor(
    ((0, 0, 0, 0, 0, -1, 0, 1, 0), (0, 0, 1, 0, 0, 0, -1, 0, 0), (0, -1, 0, 1, 0, 0, 0, 0, 0)),
    dtype=torch.float64,
    device="cpu",
)
# The Taylor coefficients |B_2k| / (2k)!, k = 1 .. 7, of (1 - (t/2) cot(t/2)) / t^2 in t^2, by Bernoulli numbers.
_INVERSE_VERSINE = (
    1 / 12,
    1 / 720,
    1 / 30240,
    1 / 1209600,
    1 / 47900160,
    691 / 1307674368000,
    1 / 74724249600,
)
# Angles below this count as this large, where quotients of functions of the angle have long reached their limits.
_LEAST_ANGLE = 1e-18
# How far |R|_F^2 may be from 3, and the largest eigenvalue of K from 4, for R to count as a rotation.
_TOLERANCE = 0.3


def cross_matrix(v: Tensor) -> Tensor:
    """Turn vectors (..., 3) into the skew matrices (..., 3, 3) of the cross product v x.

    Examples
    --------
    >>> cross_matrix(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[ 0., -3.,  2.],
            [ 3.,  0., -1.],
            [-2.,  1.,  0.]])
    """
    return (v @ _HAT.to(v)).unflatten(-1, (3, 3))


def axial_vector(x: Tensor) -> Tensor:
    """Turn matrices (..., 3, 3) into the vectors of their skew parts, the inverse of `cross_matrix`.

    Examples
    --------
    >>> axial_vector(cross_matrix(torch.tensor([1.0, 2.0, 3.0])))
    tensor([1., 2., 3.])
    """
    return 0.5 * (x.flatten(-2) @ _HAT.to(x).mT)


def quaternion_quadratic(r: Tensor) -> Tensor:
    """Return the symmetric 4 x 4 matrix, linear in R, that is 4 q q^T for a rotation (Davenport's matrix plus one).

    Its dominant eigenvector is the quaternion of the nearest rotation.
    """
    table = _QUADRATIC.to(r)
    return (r.flatten(-2) @ table).unflatten(-1, (4, 4)) + torch.eye(4, dtype=r.dtype, device=r.device)


def matrix_of_unit_quaternion(q: Tensor) -> Tensor:
    """Return the rotation matrices, quadratic in the unit quaternions: `quaternion_quadratic` read backwards."""
    table = _QUADRATIC.to(q)
    squares = (q.unsqueeze(-1) * q.unsqueeze(-2)).flatten(-2)
    return (squares @ table.mT).unflatten(-1, (3, 3))


def unit_quaternion(r: Tensor) -> Tensor:
    """Return unit quaternions with w >= 0: the column of 4 q q^T with the largest diagonal, and one power step."""
    quadratic = quaternion_quadratic(r)
    diagonal = torch.diagonal(quadratic, dim1=-2, dim2=-1)
    # Several columns may be the largest. No signed sum of the weights vanishes, so that they cannot cancel.
    weights = torch.tensor((1.0, 0.5, 0.25, 0.125), dtype=r.dtype, device=r.device)
    largest = (diagonal == diagonal.amax(-1, keepdim=True)) * weights
    column = quadratic @ largest.unsqueeze(-1)
    column = column / torch.linalg.vector_norm(column, dim=-2, keepdim=True)
    q = (quadratic @ column).squeeze(-1)
    length = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(r, dim=(-2, -1)).unsqueeze(-1)
    valid = ((length - 4).abs() <= _TOLERANCE) & ((size * size - 3).abs() <= _TOLERANCE)
    # The sign of w = 0 is that of the column, whose first largest entry is positive.
    return q / torch.where(valid, torch.where(q[..., 3:] < 0, -length, length), torch.nan)


def _vector_of_quaternion(q: Tensor) -> Tensor:
    """Return 2 atan2(|v|, w) v / |v| for unit quaternions (v, w) with w >= 0."""
    v, w = q[..., :3], q[..., 3:]
    sine = torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(_LEAST_ANGLE)
    return 2 * torch.atan2(sine, w) / sine * v


def _inverse_versine(tau: Tensor) -> Tensor:
    """Compute (1 - (t/2) cot(t/2)) / t^2 as a function of tau = t^2 <= pi^2, in which it is analytic."""
    small = tau < 0.1
    low = torch.where(small, tau, 0.0)
    series = torch.zeros_like(tau)
    for coefficient in reversed(_INVERSE_VERSINE):
        series = series * low + coefficient
    high = torch.where(small, 1.0, tau)
    half = torch.sqrt(high) / 2
    # sin(pi / 2) is not zero: no singularity up to t = pi, where the cotangent vanishes.
    return torch.where(small, series, (1 - half * torch.cos(half) / torch.sin(half)) / high)


class _VectorOfRotation(BatchedFunction):
    """The rotation vector w of R. For dR = R hat(e): dw = J^-1 e, J^-1 = I + hat(w)/2 + c hat(w)^2.

    Gradients at R are tangent there, so that errors of R across the group are ignored.
    """

    @staticmethod
    def forward(r: Tensor) -> Tensor:
        return _vector_of_quaternion(unit_quaternion(r))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        r, w = ctx.saved_tensors
        return 0.5 * r @ cross_matrix(InverseJacobian.at(w).apply_transpose(gradient))


class InverseJacobian(NamedTuple):
    """J^-1 = f I + hat(w) / 2 + c w w^T at rotation vectors w of length t: dw = J^-1 e when dR = R hat(e).

    Here f = (t/2) cot(t/2) and c = (1 - f) / t^2. The transpose has the other sign of hat(w).
    """

    w: Tensor
    f: Tensor
    c: Tensor

    @classmethod
    def at(cls, w: Tensor) -> InverseJacobian:
        """Evaluate f and c; where derivatives are recorded, as analytic functions of t^2."""
        if torch.is_grad_enabled():
            tau = (w * w).sum(-1, keepdim=True)
            c = _inverse_versine(tau)
            return cls(w, 1 - tau * c, c)
        half = 0.5 * torch.linalg.vector_norm(w, dim=-1, keepdim=True).clamp_min(_LEAST_ANGLE)
        f = half * torch.cos(half) / torch.sin(half)
        # The error of 1 - f is that of c t^2, which is what c comes with.
        return cls(w, f, (1 - f) / (4 * half * half))

    def apply(self, g: Tensor) -> Tensor:
        """Compute J^-1 g."""
        return self._straight(g) + 0.5 * torch.linalg.cross(self.w, g)

    def apply_transpose(self, g: Tensor) -> Tensor:
        """Compute J^-T g, which pulls a gradient back through the logarithm."""
        return self._straight(g) - 0.5 * torch.linalg.cross(self.w, g)

    def _straight(self, g: Tensor) -> Tensor:
        return self.f * g + (self.c * (self.w * g).sum(-1, keepdim=True)) * self.w

    def mean(self, share: Tensor) -> Tensor:
        """Sum share J^-1 over the first dimension, where share w sums to zero: shapes (N, *rest, 3), (*rest, 3, 3)."""
        outer = (share * self.c * self.w).movedim(0, -1) @ self.w.movedim(0, -2)
        identity = torch.eye(3, dtype=outer.dtype, device=outer.device)
        return outer + (share * self.f).sum(0).unsqueeze(-1) * identity


def vector_from_rotation(r: Tensor) -> Tensor:
    """Rotation vectors of rotation matrices, right at and near the angles 0 and pi.

    Parameters
    ----------
    r : Tensor
        Shape (..., 3, 3). Small deviations from a rotation are ignored: the nearest rotation is meant.

    Returns
    -------
    Tensor
        Shape (..., 3), of the dtype of `r`. At the angle pi exactly, where w and -w are the same rotation, the entry of
        largest magnitude is positive. NaN where `r` is far from a rotation (|R|_F^2 off 3 by more than 0.3, or a
        reflection). Differentiable twice, also at the identity.

    Examples
    --------
    >>> vector_from_rotation(torch.diag(torch.tensor([-1.0, 1.0, -1.0])))
    tensor([0.0000, 3.1416, 0.0000])
    """
    with without_autocast(r):
        vector: Tensor = _VectorOfRotation.call(r.to(working_dtype(r)))
    return vector.to(r.dtype)


def rotation_from_vector(v: Tensor) -> Tensor:
    """Rotation matrices of rotation vectors: the exponential of `cross_matrix(v)` (Rodrigues).

    Parameters
    ----------
    v : Tensor
        Shape (..., 3); any length.

    Returns
    -------
    Tensor
        Shape (..., 3, 3); differentiable to any order, also at zero.

    Examples
    --------
    >>> rotation_from_vector(torch.tensor([0.0, 0.0, torch.pi / 2])).round(decimals=4).abs()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 1.]])
    """
    with without_autocast(v):
        result: Tensor = _RotationOfVector.call(v.to(working_dtype(v)))
    return result.to(v.dtype)


class _RotationOfVector(BatchedFunction):
    """R = cos(t) I + sin(t)/t hat(w) + (1 - cos t)/t^2 w w^T, t = |w|, by the quaternion (sin(t/2)/t w, cos(t/2)).

    The differential is dR = R hat(J dw) with J = I - b hat(w) + c hat(w)^2.
    """

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        half = 0.5 * torch.linalg.vector_norm(w, dim=-1, keepdim=True).clamp_min(_LEAST_ANGLE)
        quaternion = torch.cat((0.5 * torch.sin(half) / half * w, torch.cos(half)), dim=-1)
        return matrix_of_unit_quaternion(quaternion)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        w, r = ctx.saved_tensors
        return pull_through_exp(w, 2 * axial_vector(r.mT @ gradient))


def pull_through_exp(w: Tensor, y: Tensor) -> Tensor:
    """Apply J^T, J^T y = a y + b w x y + c (w.y) w, to gradients y along e in dR = R hat(e), where dR = R hat(J dw).

    Here t = |w|, a = sin(t) / t, b = (1 - cos t) / t^2 and c = (1 - a) / t^2.
    """
    if torch.is_grad_enabled():
        tau = (w * w).sum(-1, keepdim=True)
        b, c = _jacobian_coefficients(tau)
        a = 1 - tau * c
    else:
        half = 0.5 * torch.linalg.vector_norm(w, dim=-1, keepdim=True).clamp_min(_LEAST_ANGLE)
        ratio = torch.sin(half) / half
        a = ratio * torch.cos(half)
        # The error of 1 - a is that of c t^2, which is what c comes with.
        b, c = 0.5 * ratio * ratio, (1 - a) / (4 * half * half)
    return a * y + b * torch.linalg.cross(w, y) + (c * (w * y).sum(-1, keepdim=True)) * w


def _jacobian_coefficients(tau: Tensor) -> tuple[Tensor, Tensor]:
    """Compute (1 - cos t) / t^2 and (t - sin t) / t^3 as functions of tau = t^2, in which they are analytic."""
    small = tau < 0.05
    low = torch.where(small, tau, 0.0)
    high = torch.where(small, 1.0, tau)
    angle = torch.sqrt(high)
    versine = 0.5 - low / 24 * (1 - low / 30 * (1 - low / 56 * (1 - low / 90)))
    cubic = 1 / 6 - low / 120 * (1 - low / 42 * (1 - low / 72 * (1 - low / 110)))
    b = torch.where(small, versine, 2 * torch.sin(0.5 * angle) ** 2 / high)
    return b, torch.where(small, cubic, (1 - torch.sin(angle) / angle) / high)


def quaternion_from_rotation(r: Tensor) -> Tensor:
    """Return unit quaternions (x, y, z, w), w >= 0, of rotations of shape (..., 3, 3); scipy's canonical `as_quat`.

    Differentiable through the rotation vector; NaN where `r` is far from a rotation.

    Examples
    --------
    >>> quaternion_from_rotation(torch.eye(3))
    tensor([0., 0., 0., 1.])
    """
    return quaternion_from_vector(vector_from_rotation(r))


def quaternion_from_vector(v: Tensor) -> Tensor:
    """Return the unit quaternions (sin(t/2) v / t, cos(t/2)), t = |v|, of rotation vectors v.

    Examples
    --------
    >>> quaternion_from_vector(torch.tensor([0.0, 0.0, torch.pi])).round(decimals=4)
    tensor([0., 0., 1., -0.])
    """
    with without_autocast(v):
        half = 0.5 * v.to(working_dtype(v))
        cosine, ratio = turning_coefficients((half * half).sum(-1, keepdim=True), math.inf)
        return torch.cat((ratio * half, cosine), dim=-1).to(v.dtype)


def rotation_from_quaternion(q: Tensor) -> Tensor:
    """Rotation matrices of quaternions (x, y, z, w), normalised first; scipy's `from_quat`.

    Parameters
    ----------
    q : Tensor
        Shape (..., 4), not zero (a zero quaternion gives NaN).

    Examples
    --------
    >>> rotation_from_quaternion(torch.tensor([0.0, 0.0, 2.0, 0.0]))
    tensor([[-1.,  0.,  0.],
            [ 0., -1.,  0.],
            [ 0.,  0.,  1.]])
    """
    with without_autocast(q):
        p = q.to(working_dtype(q))
        scale = 2 / (p * p).sum(-1)[..., None, None]
        v, w = p[..., :3], p[..., 3:, None]
        hat = cross_matrix(v)
        identity = torch.eye(3, dtype=p.dtype, device=p.device)
        return (identity + scale * (w * hat + hat @ hat)).to(q.dtype)


def vector_from_quaternion(q: Tensor) -> Tensor:
    """Rotation vectors, of length at most pi, of quaternions (x, y, z, w) of any nonzero length.

    Examples
    --------
    >>> vector_from_quaternion(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    tensor([0.0000, 0.0000, 3.1416])
    """
    return vector_from_rotation(rotation_from_quaternion(q))
