"""Maps of the ball of complex p x q matrices, {Z : I - Z Z^H > 0}, in the metric with the Frobenius norm at zero.

No checks and no scale here: plain functions on matrices of shape (..., p, q). L_Z and M_Z are the lower Cholesky
factors of I - Z Z^H and I - Z^H Z. The transvection that takes W to zero is

    phi_W(Z) = (I - W W^H)^(-1/2) (Z - W) (I - W^H Z)^(-1) (I - W^H W)^(1/2),

and with Cholesky factors in place of the Hermitian roots it differs from this only by fixed unitary factors. Distances
and logarithms come from hyperbolic sines, sinh(theta) = sigma(L_Z^-1 (Z - W) M_W^-H): near the boundary neither they
nor their inverse cancels, unlike atanh(sigma(phi_W(Z))).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import cholesky, inv_sqrtm, inverse_triangular, sqrtm
from manifoldnorm.linalg.singular import AsinhRatio, Sign, SingularDecomposition, odd, svd, svdvals, tanhm


class Factors(NamedTuple):
    """Invertible L, M with L L^H = I - Z Z^H and M M^H = I - Z^H Z, and their inverses: a frame at Z.

    V -> L^-1 V M^-H takes tangent vectors at Z to tangent vectors at zero, isometrically.
    """

    left: Tensor
    right: Tensor
    left_inverse: Tensor
    right_inverse: Tensor

    def whiten(self, v: Tensor) -> Tensor:
        """Take a tangent vector at Z to zero."""
        return self.left_inverse @ v @ self.right_inverse.mH

    def color(self, t: Tensor) -> Tensor:
        """Take a tangent vector at zero to Z."""
        return self.left @ t @ self.right.mH


def gap_left(z: Tensor) -> Tensor:
    """Compute I - Z Z^H."""
    return torch.eye(z.shape[-2], dtype=z.dtype, device=z.device) - z @ z.mH


def gap_right(z: Tensor) -> Tensor:
    """Compute I - Z^H Z."""
    return torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) - z.mH @ z


def cholesky_factors(z: Tensor) -> Factors:
    """Factor I - Z Z^H and I - Z^H Z into lower triangles: the cheap frame, for what does not depend on the choice."""
    left, right = cholesky(gap_left(z)), cholesky(gap_right(z))
    return Factors(left, right, inverse_triangular(left), inverse_triangular(right))


def hermitian_factors(z: Tensor) -> Factors:
    """Take the Hermitian roots of I - Z Z^H and I - Z^H Z: the frame of the transvection."""
    left, right = gap_left(z), gap_right(z)
    return Factors(sqrtm(left), sqrtm(right), inv_sqrtm(left), inv_sqrtm(right))


def translate(z: Tensor, w: Tensor, at_w: Factors) -> Tensor:
    """Compute phi_W(Z) in the frame at W (the transvection itself for Hermitian factors)."""
    denominator = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) - w.mH @ z
    quotient = torch.linalg.solve(denominator, z - w, left=False)
    return at_w.left_inverse @ quotient @ at_w.right


def translate_back(y: Tensor, w: Tensor, at_w: Factors) -> Tensor:
    """Invert `translate`: (I + X W^H)^-1 (X + W) with X = L Y M^-1."""
    x = at_w.left @ y @ at_w.right_inverse
    denominator = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device) + x @ w.mH
    return torch.linalg.solve(denominator, x + w)


def exponential(w: Tensor, v: Tensor, at_w: Factors) -> Tensor:
    """Follow the geodesic from W with velocity V."""
    return translate_back(tanhm(at_w.whiten(v)), w, at_w)


class Whitened(NamedTuple):
    """The logarithm of Z at W in a frame at W, as the product F(S) K, with S = U sinh(theta) X^H.

    F(S) = U (theta / cosh(theta)) X^H and K = M_Z^-1 (I - Z^H W) M_W^-H = X cosh(theta) V^H.
    """

    sines: Tensor
    cosines: Tensor
    decomposition: SingularDecomposition

    def tangent(self) -> Tensor:
        """Return the whitened logarithm U theta V^H."""
        return odd(self.sines, AsinhRatio(), decomposition=self.decomposition) @ self.cosines

    def polar(self) -> SingularDecomposition:
        """Return the decomposition (U, theta, V) of the whitened logarithm, without gradient."""
        left, values, right = self.decomposition
        scaled = right.mH @ self.cosines.detach() / torch.sqrt(1 + values * values).unsqueeze(-1)
        return SingularDecomposition(left, torch.asinh(values), scaled.mH)


def whitened_logarithm(z: Tensor, w: Tensor, at_w: Factors) -> Whitened:
    """Prepare the logarithm of Z at W, in the frame `at_w`."""
    inverse = inverse_triangular(cholesky(gap_right(z)))
    sines = at_w.left_inverse @ (z - w) @ inverse.mH
    unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    cosines = inverse @ (unit - z.mH @ w) @ at_w.right_inverse.mH
    return Whitened(sines, cosines, svd(sines))


def logarithm(z: Tensor, w: Tensor) -> Tensor:
    """Compute the initial velocity at W of the geodesic to Z, L_W F(S) M_Z^-1 (I - Z^H W); see `Whitened`."""
    left = cholesky(gap_left(w))
    inverse = inverse_triangular(cholesky(gap_right(z)))
    sines = inverse_triangular(left) @ (z - w) @ inverse.mH
    unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    return left @ odd(sines, AsinhRatio()) @ (inverse @ (unit - z.mH @ w))


def transport(w: Tensor, z: Tensor, at_w: Factors, at_z: Factors, v: Tensor) -> Tensor:
    """Transport V in parallel along the geodesic from W to Z.

    In frames it is V -> P V Q^H with the unitary polar factors of L_Z^-1 (I - Z W^H) L_W^-H and of
    M_Z^-1 (I - Z^H W) M_W^-H, whose singular values are cosh(theta) >= 1.
    """
    p, q = z.shape[-2:]
    rows = torch.eye(p, dtype=z.dtype, device=z.device) - z @ w.mH
    columns = torch.eye(q, dtype=z.dtype, device=z.device) - z.mH @ w
    left = odd(at_z.left_inverse @ rows @ at_w.left_inverse.mH, Sign())
    right = odd(at_z.right_inverse @ columns @ at_w.right_inverse.mH, Sign())
    return at_z.color(left @ at_w.whiten(v) @ right.mH)


class _SquaredDistance(torch.autograd.Function):
    """Sum of theta^2 for sinh(theta) = sigma(S), S = L_Z^-1 (Z - W) M_W^-H = U sinh(theta) X^H.

    With a = L_Z^-H U, b = M_W^-H X and f = 2 theta / cosh(theta) its gradients are
    a (f b^H + f sinh(theta) a^H Z) in Z and (f sinh(theta) W b - f a) b^H in W: the one decomposition serves both, and
    no Cholesky factor is differentiated.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        left, left_info = torch.linalg.cholesky_ex(gap_left(z))
        right, right_info = torch.linalg.cholesky_ex(gap_right(w))
        left_inverse, right_inverse = inverse_triangular(left), inverse_triangular(right)
        decomposition = svd(left_inverse @ (z - w) @ right_inverse.mH)
        square = torch.asinh(decomposition.values).square().sum(-1)
        outside = (left_info + right_info) > 0
        return torch.where(outside, torch.nan, square), left_inverse, right_inverse, *decomposition

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None
        z, w, left_inverse, right_inverse, left, values, right = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            return _differentiable_gradient(z, w, gradient, SingularDecomposition(left, values, right))
        a, b_adjoint = left_inverse.mH @ left, right.mH @ right_inverse
        force = (2 * gradient.unsqueeze(-1) * torch.asinh(values) / torch.sqrt(1 + values * values)).to(z.dtype)
        lever = force * values
        grad_z = a @ (force.unsqueeze(-1) * b_adjoint + lever.unsqueeze(-1) * (a.mH @ z))
        grad_w = (lever.unsqueeze(-2) * (w @ b_adjoint.mH) - force.unsqueeze(-2) * a) @ b_adjoint
        return grad_z, grad_w


def _differentiable_gradient(
    z: Tensor, w: Tensor, gradient: Tensor, decomposition: SingularDecomposition
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the squared distance from operations that carry gradients themselves."""
    left_inverse = inverse_triangular(cholesky(gap_left(z)))
    right_inverse = inverse_triangular(cholesky(gap_right(w)))
    sines = left_inverse @ (z - w) @ right_inverse.mH
    force = 2 * gradient[..., None, None] * odd(sines, AsinhRatio(), decomposition=decomposition)
    pulled = left_inverse.mH @ force
    common = pulled @ right_inverse
    grad_z = common + pulled @ sines.mH @ (left_inverse @ z)
    grad_w = w @ right_inverse.mH @ (sines.mH @ force) @ right_inverse - common
    return grad_z, grad_w


def squared_distance(z: Tensor, w: Tensor) -> Tensor:
    """Compute the squared distance; twice differentiable, also at coincident points."""
    if z.shape != w.shape:
        z, w = torch.broadcast_tensors(z, w)
    result: Tensor = _SquaredDistance.apply(z, w)[0]
    return result


def angles(z: Tensor, w: Tensor) -> Tensor:
    """Compute the hyperbolic angles theta of Z seen from W, descending."""
    left_inverse = inverse_triangular(cholesky(gap_left(z)))
    right_inverse = inverse_triangular(cholesky(gap_right(w)))
    sines = left_inverse @ (z - w) @ right_inverse.mH
    bad = ((sines * 0).detach().sum((-2, -1)) != 0)[..., None]  # PyTorch's routine refuses the whole batch for one NaN
    values = torch.linalg.svdvals(torch.where(bad[..., None], 0.0, sines))
    return torch.asinh(torch.where(bad, torch.nan, values))


def is_inside(z: Tensor, margin: float) -> Tensor:
    """Tell which points are farther than about `margin` from the boundary, without a decomposition."""
    gap = gap_left(z) - 4 * margin * torch.eye(z.shape[-2], dtype=z.dtype, device=z.device)
    return torch.linalg.cholesky_ex(gap).info == 0


def largest_singular_value(z: Tensor) -> Tensor:
    """Return the spectral norm with two dimensions kept, without gradient."""
    return svdvals(z)[..., :1, None]
