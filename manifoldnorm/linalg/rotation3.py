"""Rotations of three-space as matrices, unit quaternions and rotation vectors, with scipy's conventions.

A quaternion is (x, y, z, w), scalar last; q and -q are the same rotation. A rotation vector is the axis times the angle
in [0, pi]. All matrices act on columns. A matrix that is a rotation up to small errors counts as the nearest rotation;
one that is far from it gives NaN, alone in its batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.rotation import turning_coefficients

# Row-major entries of R -> row-major entries of the symmetric matrix K - I, where K = 4 q q^T for a rotation.
_QUADRATIC = (
    (1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1),
    (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, -1, 0, 0, -1, 0),
    (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0),
    (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0),
    (-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1),
    (0, 0, 0, -1, 0, 0, 1, 0, 0, 1, 0, 0, -1, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0, -1, 1, 0, 0, 0, 0, -1, 0, 0),
    (0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0),
    (-1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
)
_HAT = ((0, 0, 0, 0, 0, -1, 0, 1, 0), (0, 0, 1, 0, 0, 0, -1, 0, 0), (0, -1, 0, 1, 0, 0, 0, 0, 0))
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
    return (v @ torch.tensor(_HAT, dtype=v.dtype, device=v.device)).unflatten(-1, (3, 3))


def axial_vector(x: Tensor) -> Tensor:
    """Turn matrices (..., 3, 3) into the vectors of their skew parts, the inverse of `cross_matrix`.

    Examples
    --------
    >>> axial_vector(cross_matrix(torch.tensor([1.0, 2.0, 3.0])))
    tensor([1., 2., 3.])
    """
    return 0.5 * (x.flatten(-2) @ torch.tensor(_HAT, dtype=x.dtype, device=x.device).mT)


def quaternion_quadratic(r: Tensor) -> Tensor:
    """Return the symmetric 4 x 4 matrix, linear in R, that is 4 q q^T for a rotation (Davenport's matrix plus one).

    Its dominant eigenvector is the quaternion of the nearest rotation.
    """
    table = torch.tensor(_QUADRATIC, dtype=r.dtype, device=r.device)
    return (r.flatten(-2) @ table).unflatten(-1, (4, 4)) + torch.eye(4, dtype=r.dtype, device=r.device)


def unit_quaternion(r: Tensor) -> Tensor:
    """Return unit quaternions with w >= 0: the column of 4 q q^T with the largest diagonal, and one power step."""
    quadratic = quaternion_quadratic(r)
    diagonal = torch.diagonal(quadratic, dim1=-2, dim2=-1)
    largest = diagonal.argmax(-1)[..., None, None].expand(*diagonal.shape, 1)
    column = torch.gather(quadratic, -1, largest)
    column = column / torch.linalg.vector_norm(column, dim=-2, keepdim=True)
    q = (quadratic @ column).squeeze(-1)
    length = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    square = (r * r).flatten(-2).sum(-1, keepdim=True)
    valid = ((length - 4).abs() <= _TOLERANCE) & ((square - 3).abs() <= _TOLERANCE)
    # The sign of w = 0 is that of the column, whose largest entry is positive.
    return q / torch.where(valid, torch.where(q[..., 3:] < 0, -length, length), torch.nan)


def _vector_of_quaternion(q: Tensor) -> Tensor:
    """Return 2 atan2(|v|, w) v / |v| for unit quaternions (v, w) with w >= 0."""
    v, w = q[..., :3], q[..., 3:]
    sine = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    turned = sine > 0
    factor = torch.where(turned, torch.atan2(sine, w) / torch.where(turned, sine, 1.0), 1.0)
    return 2 * factor * v


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


class _VectorOfRotation(torch.autograd.Function):
    """The rotation vector w of R. For dR = R hat(e): dw = J^-1 e, J^-1 = I + hat(w)/2 + c hat(w)^2.

    Gradients at R are tangent there, so that errors of R across the group are ignored.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor) -> Tensor:
        return _vector_of_quaternion(unit_quaternion(r))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        r, w = ctx.saved_tensors
        return 0.5 * r @ cross_matrix(pull_through_log(w, gradient))


def pull_through_log(w: Tensor, gradient: Tensor) -> Tensor:
    """Apply J^-T, J^-T g = g - w x g / 2 + c w x (w x g), to gradients at rotation vectors w."""
    turned = torch.linalg.cross(w, gradient)
    c = _inverse_versine((w * w).sum(-1, keepdim=True))
    return gradient - 0.5 * turned + c * torch.linalg.cross(w, turned)


def inverse_jacobian(w: Tensor) -> Tensor:
    """Return I + hat(w)/2 + c hat(w)^2 for rotation vectors w: dw = J^-1 e when dR = R hat(e)."""
    hat = cross_matrix(w)
    c = _inverse_versine((w * w).sum(-1, keepdim=True)).unsqueeze(-1)
    return torch.eye(3, dtype=w.dtype, device=w.device) + 0.5 * hat + c * (hat @ hat)


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
        vector: Tensor = _VectorOfRotation.apply(r.to(working_dtype(r)))
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
        result: Tensor = _RotationOfVector.apply(v.to(working_dtype(v)))
    return result.to(v.dtype)


class _RotationOfVector(torch.autograd.Function):
    """R = cos(t) I + sin(t)/t hat(w) + (1 - cos t)/t^2 w w^T, t = |w|.

    The differential is dR = R hat(J dw) with J = I - b hat(w) + c hat(w)^2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        angle = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        turned = angle > 0
        divisor = torch.where(turned, angle, 1.0)
        ratio = torch.where(turned, torch.sin(angle) / divisor, 1.0)
        half = torch.where(turned, torch.sin(0.5 * angle) / divisor, 0.5)
        root = math.sqrt(2) * half * w
        diagonal = torch.diag_embed(torch.cos(angle).expand_as(w))
        return diagonal + cross_matrix(ratio * w) + root.unsqueeze(-1) * root.unsqueeze(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        w, r = ctx.saved_tensors
        y = 2 * axial_vector(r.mT @ gradient)
        b, c = _jacobian_coefficients((w * w).sum(-1, keepdim=True))
        turned = torch.linalg.cross(w, y)
        return y + b * turned + c * torch.linalg.cross(w, turned)


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
