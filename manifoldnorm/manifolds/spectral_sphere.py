"""Matrices of fixed spectral norm."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from manifoldnorm.linalg.spectral_norm import SpectralNormMethod, leading_singular_pair, spectral_norm
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.matrices import Frame, Length, MatrixManifold, steepest_across


class SpectralSphere(MatrixManifold):
    """Matrices of spectral norm `radius`: a manifold where the largest singular value is simple, else a set with edges.

    Where singular values are tied with the largest one, the tangent cone is replaced by the linear space in which none
    of them moves: for orthonormal columns, the tangent space of the Stiefel manifold.

    Parameters
    ----------
    radius : float or Tensor
        The spectral norm.
    estimator : {"exact", "schatten", "power"}
        How retractions find the norm, see `manifoldnorm.linalg.spectral_norm`. The first two never let it exceed
        `radius` (beyond rounding); "schatten" leaves it up to 3 % below.
    tie : float
        Singular values above (1 - `tie`) times the largest count as tied with it.

    Examples
    --------
    >>> sphere = SpectralSphere(2.0)
    >>> sphere.projx(torch.diag(torch.tensor([1.0, 4.0])))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """

    name = "the spectral sphere"

    def __init__(
        self, radius: float | Tensor = 1.0, *, estimator: SpectralNormMethod = "exact", tie: float = 1e-3
    ) -> None:
        super().__init__(radius)
        if not 0 <= tie < 1:
            raise ValueError(f"tie must lie in [0, 1), got {tie}")
        self.estimator = estimator
        self.tie = tie

    def projx(self, x: Tensor) -> Tensor:
        """Scale to spectral norm `radius`; NaN for a zero matrix."""
        return x * (self._radius() / spectral_norm(x)[..., None, None])

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Subtract U sym(U^T u V) V^T for the singular vectors U, V of the largest (and tied) singular values."""
        return self.project_with(x, u, self.normal_frame(x))

    def normal_frame(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the leading singular vectors, zero in the columns of singular values that are not tied.

        Raises
        ------
        RuntimeError
            When `x` asks for a gradient, which would silently be missing.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("projections of the spectral sphere are not differentiable in x; pass x.detach()")
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        tied = (values >= (1 - self.tie) * values[..., :1]).to(x.dtype).unsqueeze(-2)
        return left * tied, right.mT * tied

    def project_with(self, x: Tensor, u: Tensor, frame: Frame) -> Tensor:
        """Compute `proju(x, u)` from a kept frame."""
        left, right = self.normal_frame(x) if frame is None else frame
        return _less_outer(u, left, _symmetric_block(left, u, right), right)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Add and scale back to spectral norm `radius`."""
        y = x + u
        return y * (self._radius() / spectral_norm(y, self.estimator)[..., None, None])

    def retract_along(
        self, x: Tensor, u: Tensor, length: Length, *, project: bool = False, frame: Frame = None, bound: float = inf
    ) -> tuple[Tensor, Frame]:
        """Compute `retr(x, length * u)` with the leading pair of singular vectors, from one decomposition."""
        u = u.to(x.dtype)
        y = torch.addcmul(x, u, torch.as_tensor(length, dtype=x.dtype, device=x.device))
        if project:
            left, right = self.normal_frame(x) if frame is None else frame
            y = _less_outer(y, left, length * _symmetric_block(left, u, right), right)
        value, left, right = leading_singular_pair(y, self.estimator)
        return y.mul_(self._radius() / value[..., None, None]), (left, right)

    def radius_of(self, x: Tensor) -> Tensor:
        """Return the spectral norm."""
        return spectral_norm(x)

    def constraint_error(self, x: Tensor) -> Tensor:
        """Return | |x|_2 / radius - 1 |."""
        return (spectral_norm(x) / self.radius - 1).abs()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        return [Violation("of spectral norm radius, but | |x| / radius - 1 |", self.constraint_error(x))]

    def dual_direction(self, x: Tensor, g: Tensor) -> Tensor:  # noqa: D102
        pair = leading_singular_pair(x)
        return steepest_across(g, pair.left @ pair.right.mT)


def _symmetric_block(left: Tensor, u: Tensor, right: Tensor) -> Tensor:
    block = left.mT @ u @ right
    return (block + block.mT) / 2


def _less_outer(u: Tensor, left: Tensor, block: Tensor, right: Tensor) -> Tensor:
    """Compute u - left block right^T."""
    if left.shape[-1] == 1:
        # Broadcasting is faster than a product for vectors.
        return torch.addcmul(u, left * block, right.mT, value=-1)
    return u - left @ block @ right.mT
