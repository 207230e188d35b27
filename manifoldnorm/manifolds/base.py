"""The manifold protocol: what layers and optimizers ask of a geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, overload

import torch
from torch import Tensor

from manifoldnorm.linalg import safe_sqrt
from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.manifolds.checks import Violation, first_failure
from manifoldnorm.manifolds.mean import (
    Reduce,
    identity_reduce,
    karcher_mean,
    normalized_weights,
)


class Manifold:
    """A Riemannian manifold: a stateless object that knows how its points and tangent vectors behave.

    Batch dimensions lead and event dimensions (`ndim` of them) trail; every method broadcasts over the batch. Names and
    argument order are geoopt's: points `x`, `y`, then tangent vectors `u`, `v`. Two manifolds are equal when their type
    and settings are.

    A subclass sets `name` and `ndim` and defines at least `projx`, `proju`, `inner`, `expmap`, `logmap`, `transp`,
    `origin`, `random` and `_point_violations`. What follows from these is defined here; a method without a closed form
    raises `NotImplementedError` and says what to use instead.

    Attributes
    ----------
    name : str
        The name in messages.
    ndim : int
        Number of event dimensions: 1 for vectors, 2 for matrices.
    """

    name: str = "manifold"
    ndim: int = 1
    reversible: bool = False

    # Value semantics.

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise AttributeError(f"{type(self).__name__} is immutable; make a new one with the {name} you want")
        super().__setattr__(name, value)

    def _settings(self) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted((k, v) for k, v in vars(self).items()))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Manifold):
            return NotImplemented
        mine, theirs = self._settings(), other._settings()
        return len(mine) == len(theirs) and all(
            k == j and (v is w if isinstance(v, Tensor) or isinstance(w, Tensor) else v == w)
            for (k, v), (j, w) in zip(mine, theirs)
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple((k, id(v) if isinstance(v, Tensor) else v) for k, v in self._settings())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._settings())})"

    def _missing(self, method: str, instead: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has no closed form for {method}; {instead}")

    # Points.

    def projx(self, x: Tensor) -> Tensor:
        """Project an ambient tensor of shape (..., *event) onto the manifold."""
        self._missing("projx", "define it in the subclass")

    def origin(self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the distinguished point (a group's identity) with the given batch and event size."""
        self._missing("origin", "define it in the subclass")

    def random(
        self,
        *size: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw random points with the given batch and event size."""
        self._missing("random", "define it in the subclass")

    def check_event_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Raise ValueError unless `shape` ends in a valid event shape."""
        if len(shape) < self.ndim:
            raise ValueError(
                f"{name} must have at least {self.ndim} dimensions for {self.name}, got shape {tuple(shape)}"
            )

    def dimension(self, *event_shape: int) -> int:
        """Return the real dimension of the manifold with points of the given event shape."""
        self._missing("dimension", "define it in the subclass")

    def _point_violations(self, x: Tensor) -> list[Violation]:
        self._missing("point checks", "define _point_violations in the subclass")

    def check_point_on_manifold(
        self, x: Tensor, *, explain: bool = False, atol: float | None = None, rtol: float | None = None
    ) -> bool | tuple[bool, str | None]:
        """Tell whether every point of a batch lies on the manifold.

        Parameters
        ----------
        x : Tensor
            Shape (..., *event).
        explain : bool
            Return the pair (result, reason) instead; the reason names the batch index.
        atol, rtol : float, optional
            Absolute and relative tolerance; by default 10 eps^(3/4) of the dtype, 2e-11 in float64, 6e-5 in float32.
        """
        reason: str | None
        try:
            self.check_event_shape(tuple(x.shape))
            reason = first_failure(x, self._point_violations(x), self.ndim, "x", self.name, atol, rtol)
        except (ValueError, TypeError) as error:
            reason = str(error)
        return (reason is None, reason) if explain else reason is None

    def assert_check_point_on_manifold(
        self, x: Tensor, name: str = "x", *, atol: float | None = None, rtol: float | None = None
    ) -> None:
        """Raise ValueError that names argument, batch index and remedy unless all points are on the manifold."""
        self.check_event_shape(tuple(x.shape), name)
        reason = first_failure(x, self._point_violations(x), self.ndim, name, self.name, atol, rtol)
        if reason is not None and bool(torch.isfinite(x).all()):
            reason = f"{reason}; projx({name}) gives the nearest valid point when the deviation is round-off"
        if reason is not None:
            raise ValueError(reason)

    def is_plausible(self, x: Tensor) -> Tensor:
        """Return a boolean scalar that is False where a cheap look shows a point off the manifold; layers ask it."""
        return torch.ones((), dtype=torch.bool, device=x.device)

    def check_point(self, x: Tensor, *, explain: bool = False) -> bool | tuple[bool, str | None]:
        """Tell whether the shape of `x` fits the manifold."""
        ok, reason = self._check_shape(tuple(x.shape), "x")
        return (ok, reason) if explain else ok

    def assert_check_point(self, x: Tensor) -> None:
        """Raise ValueError unless the shape of `x` fits the manifold (the check that geoopt's parameters make)."""
        self.check_event_shape(tuple(x.shape))

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        try:
            self.check_event_shape(tuple(shape), name)
        except ValueError as error:
            return False, str(error)
        return True, None

    # Tangent vectors.

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Project an ambient vector `u` orthogonally onto the tangent space at `x`."""
        self._missing("proju", "define it in the subclass")

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """Turn the Euclidean gradient `u` of a function at `x` into its Riemannian gradient."""
        return self.proju(x, u)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Compute the metric <u, v> at `x` (<u, u> without `v`); `keepdim` keeps event dimensions of size one."""
        self._missing("inner", "define it in the subclass")

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the length of `u` at `x`; its gradient at zero is zero."""
        return safe_sqrt(self.inner(x, u, keepdim=keepdim))

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Compute the inner product per component with event dimensions kept (products of manifolds have several)."""
        return self.inner(x, u, v, keepdim=True)

    def check_vector_on_tangent(
        self,
        x: Tensor,
        u: Tensor,
        *,
        explain: bool = False,
        atol: float | None = None,
        rtol: float | None = None,
    ) -> bool | tuple[bool, str | None]:
        """Tell whether every `u` is tangent at its `x`; see `check_point_on_manifold` for the options."""
        deviation = (self.proju(x, u) - u).abs().flatten(-self.ndim).amax(-1)
        scale = u.abs().flatten(-self.ndim).amax(-1)
        violations = [Violation("tangent, but |proj(u) - u|", deviation, scale)]
        reason = first_failure(u, violations, self.ndim, "u", f"the tangent space of {self.name}", atol, rtol)
        return (reason is None, reason) if explain else reason is None

    def random_tangent(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a Gaussian ambient vector and project it onto the tangent space at `x`."""
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return self.proju(x, noise)

    # Moving.

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Follow the geodesic from `x` with velocity `u` for unit time."""
        self._missing("expmap", "use retr, or define it in the subclass")

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the velocity at `x` of the shortest geodesic that reaches `y` at unit time."""
        self._missing("logmap", "define it in the subclass")

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Move from `x` along `u` by the default retraction: the exponential map, or a cheaper one."""
        return self.expmap(x, u)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Transport the vector `v` from `x` to `y`, parallel along the geodesic where a closed form is known."""
        self._missing("transp", "use proju(y, v) as a vector transport, or define it in the subclass")

    def retr_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Retract along `u` and transport `v` (and `more` vectors) to the new point; returns (y, v, ...)."""
        y = self.retr(x, u)
        return (y, *(self.transp(x, y, vector) for vector in (v, *more)))

    def expmap_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Follow the geodesic along `u` and transport `v` (and `more` vectors); returns (y, v, ...)."""
        y = self.expmap(x, u)
        return (y, *(self.transp(x, y, vector) for vector in (v, *more)))

    def expmap0(self, u: Tensor) -> Tensor:
        """Follow the geodesic that leaves the origin along the tangent part of `u`, of shape (..., *event)."""
        event = u.shape[u.ndim - self.ndim :]
        origin = self.origin(*event, dtype=u.dtype, device=u.device)
        return self.expmap(origin, self.proju(origin, u))

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Evaluate the geodesic from `x` (t = 0) to `y` (t = 1); a tensor `t` has the batch shape."""
        return self.expmap(x, self._over_events(t) * self.logmap(x, y))

    @overload
    def _over_events(self, t: Tensor) -> Tensor: ...

    @overload
    def _over_events(self, t: float) -> float: ...

    def _over_events(self, t: Tensor | float) -> Tensor | float:
        return t[(...,) + (None,) * self.ndim] if isinstance(t, Tensor) and t.ndim else t

    # Measuring.

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the squared geodesic distance."""
        return self.inner(x, self.logmap(x, y), keepdim=keepdim)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Compute the geodesic distance; where two points are equal it is exactly zero, and so is its gradient."""
        equal = (x == y).flatten(-self.ndim).all(-1)
        squared = self.dist2(x, y)
        # Round-off in a squared distance that should vanish would have a square root with a gradient of order one.
        distance = safe_sqrt(torch.where(equal, torch.zeros_like(squared), squared))
        return distance[(...,) + (None,) * self.ndim] if keepdim else distance

    # Statistics.

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the Frechet mean, the minimiser of the weighted sum of squared distances.

        Parameters
        ----------
        x : Tensor
            Points of shape (*batch, *event).
        weights : Tensor, optional
            Nonnegative, broadcastable with the batch shape; uniform by default. They are normalised.
        dim : int or tuple of int
            Batch dimensions that are averaged; negative ones count from the last batch dimension.
        steps : int, optional
            Number of iterations for a mean without closed form. By default it is iterated to convergence, with a
            `ConvergenceWarning` that gives the residual when that fails.
        reduce : callable
            Sums a tensor over processes, differentiably; the identity by default.

        Returns
        -------
        Tensor
            Points with the dimensions `dim` removed; differentiable in `x` and `weights` by the implicit function
            theorem, not by unrolling iterations.
        """
        points, weights = normalized_weights(x, weights, dim, self.ndim, reduce)
        return karcher_mean(self, points, weights, steps=steps, reduce=reduce)

    def variance(
        self,
        x: Tensor,
        mean: Tensor | None = None,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
    ) -> Tensor:
        """Compute the weighted mean of squared distances to `mean` (the Frechet mean by default)."""
        if mean is None:
            mean = self.mean(x, weights, dim)
        points, weights = normalized_weights(x, weights, dim, self.ndim, identity_reduce)
        return (weights * self.dist2(mean, points)).sum(0)

    # Normalising.

    @property
    def codomain(self) -> Manifold:
        """The manifold on which a batch norm works after `deform`; this one unless the metric is a pullback."""
        return self

    @property
    def is_chart(self) -> bool:
        """Whether `deform` returns its argument, so that a batch norm works on the points themselves."""
        return self.codomain is self

    def deform(self, x: Tensor) -> Tensor:
        """Map points to `codomain`, isometrically."""
        return x

    def undeform(self, z: Tensor) -> Tensor:
        """Map points of `codomain` back."""
        return z

    def center(self, x: Tensor, base: Tensor) -> Tensor:
        """Return `x` seen from `base`: the log at the origin of `x` after the move that takes `base` there."""
        self._missing("center", "define it in the subclass")

    def uncenter(self, t: Tensor, base: Tensor) -> Tensor:
        """Invert `center`: follow the tangent vector `t` from the origin, then move the origin to `base`."""
        self._missing("uncenter", "define it in the subclass")

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute uncenter(factor(d2) * center(x, mean), bias), where d2 = |center(x, mean)|^2 has the batch shape.

        A geometry overrides this only to share work between the two maps, never to change the result.
        """
        t = self.center(x, mean)
        origin = self.origin(*t.shape[t.ndim - self.ndim :], dtype=t.dtype, device=t.device)
        return self.uncenter(self._over_events(factor(self.inner(origin, t))) * t, bias)

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
        """Rescale about the mean of the first dimension; return the points and the mean.

        Like `rescale`, a geometry overrides this only to share work. `detach` keeps gradients out of the mean.
        """
        mean = self.mean(x.detach() if detach else x, steps=steps, reduce=reduce)
        return self.rescale(x, mean, bias, factor), mean


def check_points(manifold: Manifold, x: Tensor, name: str = "input") -> None:
    """Raise for points that are not on the manifold, where looking costs no synchronisation; first a cheap look."""
    if x.numel() and may_look_at(x):
        with torch.no_grad():
            if not bool(manifold.is_plausible(x)):
                manifold.assert_check_point_on_manifold(x.detach(), name)


def require_manifold(value: object) -> None:
    """Raise TypeError unless `value` is a manifold: an instance, not its class."""
    if not isinstance(value, Manifold):
        raise TypeError(
            f"manifold must be an instance of a manifoldnorm geometry, such as SPDLogEuclidean(), got {value!r}"
        )


class LieGroup(Manifold):
    """A manifold with a group operation whose translations (on the side that fits the metric) are isometries."""

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply two group elements."""
        self._missing("mul", "define it in the subclass")

    def inv(self, x: Tensor) -> Tensor:
        """Invert a group element."""
        self._missing("inv", "define it in the subclass")

    def identity(
        self, *size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the group's identity, which is the manifold's origin."""
        return self.origin(*size, dtype=dtype, device=device)

    def translate(self, x: Tensor, by: Tensor) -> Tensor:
        """Translate `x` by a group element on the side that is an isometry of the metric (left, unless overridden)."""
        return self.mul(by, x)


__all__ = ["LieGroup", "Manifold", "check_points", "require_manifold"]
