"""Geometries that are only a diffeomorphism: a metric pulled back from a manifold that is known already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import BatchedFunction, pullback
from manifoldnorm.linalg.precision import computed_in, working_dtype
from manifoldnorm.linalg.stable import frobenius_inner
from manifoldnorm.manifolds.base import LieGroup, Manifold
from manifoldnorm.manifolds.checks import Violation
from manifoldnorm.manifolds.mean import Reduce, expand_like, identity_reduce, normalized_weights


class Pullback(Manifold):
    """A manifold whose metric makes `deform` an isometry onto `codomain`.

    A subclass gives `codomain`, `deform` and `undeform`, and for speed their differentials `ddeform` and `dundeform`,
    which are otherwise derived by differentiating twice in reverse mode. Everything else follows, computed in float64
    on the CPU for float32 points.
    """

    @property
    def codomain(self) -> Manifold:
        """The manifold that `deform` maps onto."""
        self._missing("codomain", "define it in the subclass")

    def deform(self, x: Tensor) -> Tensor:
        """Map points to the codomain."""
        self._missing("deform", "define it in the subclass")

    def undeform(self, z: Tensor) -> Tensor:
        """Map points of the codomain back."""
        self._missing("undeform", "define it in the subclass")

    def ddeform(self, x: Tensor, u: Tensor) -> Tensor:
        """Apply the differential of `deform` at `x` to `u`."""
        x, u = torch.broadcast_tensors(x, u)
        z, pull = pullback(self.deform, x)
        _, push = pullback(lambda w: pull(w)[0], torch.zeros_like(z))
        result: Tensor = push(u)[0]
        return result

    def dundeform(self, z: Tensor, w: Tensor) -> Tensor:
        """Apply the differential of `undeform` at `z` to `w`."""
        z, w = torch.broadcast_tensors(z, w)
        x, pull = pullback(self.undeform, z)
        _, push = pullback(lambda u: pull(u)[0], torch.zeros_like(x))
        result: Tensor = push(w)[0]
        return result

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the point that `deform` maps to the codomain's origin."""
        return self.undeform(self.codomain.origin(*size, dtype=dtype, device=device))

    @computed_in(working_dtype)
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Turn the Euclidean gradient `u` of a function at `x` into its Riemannian gradient."""
        z = self.deform(x)
        with torch.enable_grad():
            _, pull = pullback(self.undeform, z)
            cotangent = pull(u)[0]
        return self.dundeform(z, self.codomain.egrad2rgrad(z, cotangent))

    @computed_in(working_dtype)
    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute the metric of the images of `u` and `v` at the image of `x`."""
        z = self.deform(x)
        return self.codomain.inner(z, self.ddeform(x, u), None if v is None else self.ddeform(x, v), keepdim=keepdim)

    @computed_in(working_dtype)
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the codomain's geodesic."""
        return self.undeform(self.codomain.expmap(self.deform(x), self.ddeform(x, u)))

    @computed_in(working_dtype)
    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the initial velocity of the codomain's geodesic, mapped back."""
        z = self.deform(x)
        return self.dundeform(z, self.codomain.logmap(z, self.deform(y)))

    @computed_in(working_dtype)
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport along the codomain's geodesic (parallel when the codomain's transport is)."""
        z, end = self.deform(x), self.deform(y)
        return self.dundeform(end, self.codomain.transp(z, end, self.ddeform(x, v)))

    @computed_in(working_dtype)
    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Evaluate the codomain's geodesic between the images, mapped back."""
        return self.undeform(self.codomain.geodesic(self.deform(x), self.deform(y), t))

    @computed_in(working_dtype)
    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the squared distance of the images."""
        return self.codomain.dist2(self.deform(x), self.deform(y), keepdim=keepdim)

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the mean of the images, mapped back; see `Manifold.mean`."""
        return self.undeform(self.codomain.mean(self.deform(x), weights, dim, steps=steps, reduce=reduce))

    @computed_in(working_dtype)
    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Center in the codomain and map the tangent vector back to the origin; see `Manifold.center`."""
        z = self.codomain.center(self.deform(x), self.deform(base))
        return self.dundeform(self._codomain_origin(z), z)

    @computed_in(working_dtype)
    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Invert `center`."""
        z = self._codomain_origin(t)
        origin = self.undeform(z)
        return self.undeform(self.codomain.uncenter(self.ddeform(origin, t), self.deform(base)))

    def _codomain_origin(self, like: Tensor) -> Tensor:
        event = like.shape[like.ndim - self.ndim :]
        return self.codomain.origin(*event, dtype=like.dtype, device=like.device)


class VectorSpace(Manifold):
    """The image of a flat geometry: a linear space of tensors with a constant inner product.

    Projection and inner product are asked of the geometry, so the space is determined by it.
    """

    def __init__(self, geometry: Flat) -> None:
        self.geometry = geometry
        self.name = f"the flat chart of {geometry.name}"
        self.ndim = geometry.ndim

    def projx(self, x: Tensor) -> Tensor:
        """Project onto the linear space."""
        return self.geometry.project_chart(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Project onto the linear space."""
        return expand_like(self.geometry.project_chart(u), x)

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return zero."""
        return torch.zeros(*size, dtype=dtype, device=device)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Solve <r, v> = Re sum(u * v) for r in the linear space."""
        return expand_like(self.geometry.raise_chart(u), x)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute the constant inner product."""
        product = self.geometry.chart_inner(u, u if v is None else v)
        return product[(...,) + (None,) * self.ndim] if keepdim else product

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Add."""
        return x + u

    def expmap0(self, u: Tensor) -> Tensor:
        """Project onto the linear space."""
        return self.geometry.project_chart(u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Subtract."""
        return y - x

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Leave the vector as it is."""
        return v.expand(torch.broadcast_shapes(x.shape, y.shape, v.shape))

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Interpolate linearly."""
        if isinstance(t, float) and x.dtype == y.dtype:
            return torch.lerp(x, y, t)
        return x + self._over_events(t) * (y - x)

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the weighted average; see `Manifold.mean`."""
        points, weights = normalized_weights(x, weights, dim, self.ndim, reduce)
        return reduce((self._over_events(weights) * points).sum(0))

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Subtract `base`."""
        return x - base

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Add `base`."""
        return t + base

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Subtract `mean`, scale and add `bias`; see `Manifold.rescale`."""
        return self._scaled(x - mean, bias, factor)

    def standardize(
        self,
        x: Tensor,
        bias: Tensor,
        factor: Callable[[Tensor], Tensor],
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
        detach: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Rescale about the average; see `Manifold.standardize`."""
        if detach or reduce is not identity_reduce:
            mean = self.mean(x.detach() if detach else x, reduce=reduce)
            return self._scaled(x - mean, bias, factor), mean
        centered, mean = _Centered.call(x)
        return self._scaled(centered, bias, factor), mean

    def _scaled(self, t: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        scale = self._over_events(factor(self.geometry.chart_inner(t, t)))
        return torch.addcmul(bias, t, scale.to(t.dtype))


class _Centered(BatchedFunction):
    """Points less their mean over the first dimension, and the mean."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(0)
        return x - mean, mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.count = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, mean_gradient: Tensor) -> Tensor:
        return gradient - (gradient.sum(0) - mean_gradient) / ctx.count


class Flat(Pullback, LieGroup):
    """An Abelian Lie group whose metric is pulled back from a vector space by `deform`.

    A subclass gives `deform` and `undeform`, and for speed `ddeform` and `dundeform`; `project_chart` when the image is
    not all tensors of the event shape, and `chart_inner` with `raise_chart` when its inner product is not the plain
    one. Projections, random points and checks have defaults through the chart, which a subclass may better.

    Examples
    --------
    The positive vectors with the metric of their logarithms:

    >>> class PositiveVectors(Flat):
    ...     name = "positive vectors"
    ...     ndim = 1
    ...     def deform(self, x):
    ...         return x.log()
    ...     def undeform(self, z):
    ...         return z.exp()
    >>> PositiveVectors().mean(torch.tensor([[1.0], [4.0]]))
    tensor([2.])
    """

    @property
    def codomain(self) -> VectorSpace:
        """The vector space that `deform` maps onto."""
        return VectorSpace(self)

    def project_chart(self, z: Tensor) -> Tensor:
        """Project a tensor of the event shape orthogonally onto the image of `deform` (a linear space)."""
        return z

    def chart_inner(self, z: Tensor, w: Tensor) -> Tensor:
        """Compute the inner product of the image; the plain sum of products here."""
        return frobenius_inner(z, w, self.ndim)

    def raise_chart(self, g: Tensor) -> Tensor:
        """Find r in the image with chart_inner(r, w) = sum(g * w) for all w in it; goes with `chart_inner`."""
        return self.project_chart(g)

    def projx(self, x: Tensor) -> Tensor:
        """Send the point to the chart's linear space and back; NaN where `deform` is not defined."""
        return self.undeform(self.project_chart(self.deform(x)))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Project the image of the vector onto the chart's linear space and send it back."""
        return self.dundeform(self.deform(x), self.project_chart(self.ddeform(x, u)))

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw points whose coordinates in the chart are standard Gaussian."""
        self.check_event_shape(size, "size")
        noise = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return self.undeform(self.project_chart(noise))

    def _point_violations(self, x: Tensor) -> list[Violation]:
        back = self.projx(x)
        first = x.ndim - self.ndim
        deviation = torch.nan_to_num((back - x).abs(), nan=torch.inf).flatten(first).amax(-1)
        return [Violation("kept by undeform(deform(x)), but the deviation", deviation, x.abs().flatten(first).amax(-1))]

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the images."""
        return self.undeform(self.deform(x) + self.deform(y))

    def inv(self, x: Tensor) -> Tensor:
        """Negate the image."""
        return self.undeform(-self.deform(x))
