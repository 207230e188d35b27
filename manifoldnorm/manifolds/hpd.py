"""Hermitian positive definite matrices with the affine-invariant metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import (
    Eigendecomposition,
    Log,
    cholesky,
    clamp_eigenvalues,
    eigh,
    expm,
    inv_sqrtm,
    inverse_triangular,
    logm,
    powm,
    sqrtm,
    symmetrize,
    x_coth,
)
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.manifolds.checks import Violation, default_tolerance
from manifoldnorm.manifolds.complex_points import ComplexPoints, holds_somewhere
from manifoldnorm.manifolds.hadamard_mean import hadamard_mean
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, normalized_weights
from manifoldnorm.manifolds.relative_spectrum import relative_eigh


class HPD(ComplexPoints):
    """Hermitian positive definite matrices with the affine-invariant metric Re tr(P^-1 U P^-1 V).

    The distance is |log(P^-1/2 Q P^-1/2)|. A batch norm moves points by congruence with Hermitian square roots,
    M^-1/2 Z M^-1/2 and B^1/2 Z B^1/2. For real matrices use `SPDAffineInvariant`.

    Notes
    -----
    Points are complex tensors of shape (..., n, n), tangent vectors Hermitian matrices. Bhatia (2007). The sectional
    curvature lies in [-1/2, 0], so the mean is unique.

    Examples
    --------
    >>> space = HPD()
    >>> space.dist(space.origin(2, 2), torch.e * space.origin(2, 2))
    tensor(1.4142)
    """

    name = "Hermitian positive definite matrices"
    ndim = 2

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in two equal dimensions."""
        super().check_event_shape(shape, name)
        if shape[-1] != shape[-2] or shape[-1] == 0:
            raise ValueError(f"{name} must hold square matrices, shape (..., n, n), got shape {tuple(shape)}")

    def dimension(self, *event_shape: int) -> int:
        """Return the real dimension, n^2."""
        n = event_shape[0]
        return n * n

    def _inputs(self, **named: Tensor) -> tuple[Tensor, ...]:
        raised = super()._inputs(**named)
        for (name, x), p in zip(named.items(), raised):
            # Tangent vectors and gradients may be unsymmetric by right, and are symmetrised; points may not.
            if name in ("x", "y", "base", "mean", "bias") and holds_somewhere(
                (p - p.mH).abs().flatten(-2).amax(-1) > default_tolerance(x.dtype) * p.abs().flatten(-2).amax(-1)
            ):
                self.assert_check_point_on_manifold(x.detach(), name)
        return raised

    def is_plausible(self, x: Tensor) -> Tensor:
        """Return False for a real tensor or where a matrix is not Hermitian; see `Manifold.is_plausible`."""
        if not x.is_complex() or not x.numel():
            return super().is_plausible(x) & torch.as_tensor(x.is_complex())
        scale = x.detach().abs().flatten(-2).amax(-1)
        return ((x - x.mH).detach().abs().flatten(-2).amax(-1) <= default_tolerance(x.dtype) * scale).all()

    def _point_violations(self, x: Tensor) -> list[Violation]:
        self.require_complex(x)
        scale = x.abs().flatten(-2).amax(-1)
        deviation = (x - x.mH).abs().flatten(-2).amax(-1)
        smallest = eigh(x).values[..., 0]
        return [
            Violation("Hermitian, but max |x - x^H|", deviation, scale),
            Violation("positive definite, but its smallest eigenvalue", smallest, failed=~(smallest > 0)),
        ]

    # Points and tangent vectors.

    def projx(self, x: Tensor) -> Tensor:
        """Take the Hermitian part and raise eigenvalues below n eps times the largest one to that floor."""
        self.require_complex(x)
        x = symmetrize(x)
        largest = torch.linalg.matrix_norm(x, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        return clamp_eigenvalues(x / largest, torch.finfo(x.dtype).eps * x.shape[-1]) * largest

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Take the Hermitian part."""
        return symmetrize(u).expand(torch.broadcast_shapes(x.shape, u.shape))

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return identity matrices of the given batch and event size."""
        self.check_event_shape(size, "size")
        return torch.eye(size[-1], dtype=self.complex_dtype(dtype), device=device).expand(*size).clone()

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw exponentials of Hermitian Gaussian matrices whose entries have standard deviation about 0.5."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=self.complex_dtype(dtype), device=device)
        return expm(0.5 * symmetrize(noise))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute P G P with G the Hermitian part of `u`."""
        p, g = self._inputs(x=x, u=u)
        return symmetrize(p @ symmetrize(g) @ p).to(x.dtype)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute Re tr(P^-1 U P^-1 V)."""
        p, a, b = self._inputs(x=x, u=u, v=u if v is None else v)
        inverse = inverse_triangular(cholesky(p))
        left = _congruence(inverse, a)
        right = left if v is None else _congruence(inverse, b)
        return self._output((left * right.conj()).real.sum((-2, -1), keepdim=keepdim), x.dtype, x=x)

    # Moving.

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Compute L exp(L^-1 U L^-H) L^H with L = chol(P); positive definite for every `u`."""
        p, v = self._inputs(x=x, u=u)
        factor = cholesky(p)
        moved = _congruence(factor, expm(_congruence(inverse_triangular(factor), v)))
        return self._output(moved, x.dtype, x=x)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute L log(L^-1 Q L^-H) L^H with L = chol(P)."""
        p, q = self._inputs(x=x, y=y)
        factor = cholesky(p)
        whitened, eigen = _relative(inverse_triangular(factor), q)
        return self._output(_congruence(factor, logm(whitened, eigen=eigen)), x.dtype, x=x, y=y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport in parallel along the geodesic: E V E^H with E = (Q P^-1)^(1/2)."""
        p, q, t = self._inputs(x=x, y=y, v=v)
        factor = cholesky(p)
        inverse = inverse_triangular(factor)
        whitened, eigen = _relative(inverse, q)
        root = powm(whitened, 0.5, eigen=eigen)
        return self._output(_congruence(factor @ root @ inverse, t), x.dtype, x=x, y=y)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute L (L^-1 Q L^-H)^t L^H with L = chol(P)."""
        p, q = self._inputs(x=x, y=y)
        factor = cholesky(p)
        whitened, eigen = _relative(inverse_triangular(factor), q)
        return self._output(_congruence(factor, powm(whitened, t, eigen=eigen)), x.dtype, x=x, y=y)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute |log(L^-1 Q L^-H)|^2 with L = chol(P)."""
        p, q = self._inputs(x=x, y=y)
        whitened, eigen = _relative(inverse_triangular(cholesky(p)), q)
        log = logm(whitened, eigen=eigen)
        return self._output((log * log.conj()).real.sum((-2, -1), keepdim=keepdim), x.dtype, x=x, y=y)

    # Statistics and normalising.

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Karcher mean from the arithmetic mean on; see `Manifold.mean`."""
        self._inputs(x=x)
        points, weights = normalized_weights(x, weights, dim, 2, reduce)
        points, weights = points.to(working_dtype(points)), weights.to(working_dtype(weights))
        start = symmetrize(reduce((self._over_events(weights) * points.detach()).sum(0).detach()))
        mean = hadamard_mean(
            _hermitian_frame, points, weights, start, ndim=2, name=self.name, steps=steps, reduce=reduce
        )
        return self._output(mean, x.dtype, x=x)

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Compute log(M^-1/2 P M^-1/2) for the base M."""
        p, m = self._inputs(x=x, base=base)
        whitened, eigen = _relative(inv_sqrtm(m), p)
        return self._output(logm(whitened, eigen=eigen), x.dtype, x=x, base=base)

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Compute M^1/2 exp(t) M^1/2 for the base M."""
        v, m = self._inputs(t=t, base=base)
        return self._output(_congruence(sqrtm(m), expm(v)), t.dtype, base=base)

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Rescale with one eigendecomposition for the logarithm and the exponential; see `Manifold.rescale`."""
        p, m, b = self._inputs(x=x, mean=mean, bias=bias)
        whitened, eigen = _relative(inv_sqrtm(m), p)
        t = logm(whitened, eigen=eigen)
        size = factor((t * t.conj()).real.sum((-2, -1))).expand(t.shape[:-2])
        power = expm(size[..., None, None] * t, eigen=eigen.map(Log()).scaled(size.detach()))
        return self._output(_congruence(sqrtm(b), power), x.dtype, x=x, mean=mean, bias=bias)


def _congruence(factor: Tensor, x: Tensor) -> Tensor:
    return symmetrize(factor @ x @ factor.mH)


def _relative(factor: Tensor, x: Tensor) -> tuple[Tensor, Eigendecomposition]:
    """Return F x F^H and its decomposition."""
    whitened = _congruence(factor, x)
    return whitened, relative_eigh(factor, x, whitened)


class _HermitianLogarithms(NamedTuple):
    """Logarithms of L^-1 P L^-H; the roots are half the differences of their eigenvalues."""

    tangent: Tensor
    eigen: Eigendecomposition

    @property
    def largest_root(self) -> Tensor:
        values = self.eigen.values
        return (values[..., -1] - values[..., 0]) / 2

    def hessian(self) -> Callable[[Tensor], Tensor]:
        values, vectors = self.eigen
        adjoint, kernel = vectors.mH, x_coth((values.unsqueeze(-1) - values.unsqueeze(-2)) / 2)
        return lambda direction: vectors @ (kernel * (adjoint @ direction @ vectors)) @ adjoint


class _HermitianFrame(NamedTuple):
    """The Cholesky frame V -> L^-1 V L^-H at P = L L^H."""

    factor: Tensor
    inverse: Tensor

    def logarithms(self, points: Tensor) -> _HermitianLogarithms:
        whitened, eigen = _relative(self.inverse, points)
        return _HermitianLogarithms(logm(whitened, eigen=eigen), eigen.map(Log()))

    def exponential(self, tangent: Tensor) -> Tensor:
        return _congruence(self.factor, expm(tangent))

    def pull(self, gradient: Tensor) -> Tensor:
        return _congruence(self.factor.mH, symmetrize(gradient))


def _hermitian_frame(base: Tensor) -> _HermitianFrame:
    factor = cholesky(base)
    return _HermitianFrame(factor, inverse_triangular(factor))
