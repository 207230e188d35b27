"""The laws that every geometry must satisfy, as a pytest class: a new geometry gets them all for a few lines."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds import LieGroup, Manifold
from manifoldnorm.nn import RiemannianBatchNorm
from manifoldnorm.testing.slopes import check_gradient, check_retraction

Binary = Callable[[Tensor, Tensor], Tensor]


class ManifoldSuite:
    """Base class of a geometry's tests; subclass it with a name that starts with `Test`.

    Attributes
    ----------
    manifold : Manifold
        The geometry under test.
    event_shape : tuple of int
        The event shape of the test points.
    dtype : torch.dtype
        float64, or complex128 for complex geometries.
    tolerance : float
        Relative error that the laws may have in float64.
    float32_tolerance : float
        Relative error of float32 results against float64 ones on the same inputs.
    mean_tolerance : float
        For the mean and variance theorems.
    unsupported : frozenset of str
        Methods that must raise NotImplementedError, such as "transp".
    retraction_order : int
        1, or 2 for a second-order retraction.
    second_order : bool
        Whether second derivatives are claimed for squared distances.
    second_order_maps : bool
        Whether they are claimed for logarithms and exponentials too (a pullback's contain a differential already).
    second_order_mean : bool
        Whether second derivatives are claimed through the mean and the batch norm.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> class TestLogEuclidean(ManifoldSuite):
    ...     manifold = SPDLogEuclidean()
    ...     event_shape = (3, 3)
    """

    manifold: ClassVar[Manifold]
    event_shape: ClassVar[tuple[int, ...]]
    dtype: ClassVar[torch.dtype] = torch.float64
    tolerance: ClassVar[float] = 1e-11
    float32_tolerance: ClassVar[float] = 2e-5
    mean_tolerance: ClassVar[float] = 1e-12
    unsupported: ClassVar[frozenset[str]] = frozenset()
    retraction_order: ClassVar[int] = 1
    second_order: ClassVar[bool] = True
    second_order_maps: ClassVar[bool] = True
    second_order_mean: ClassVar[bool] = True

    # Samples; override to keep points where the laws hold, such as inside an injectivity radius.

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        """Draw a batch of points."""
        generator = torch.Generator().manual_seed(seed)
        return self.manifold.random(*batch, *self.event_shape, generator=generator, dtype=self.dtype)

    def tangents(self, x: Tensor, *, seed: int = 100) -> Tensor:
        """Draw tangent vectors of length between 0.2 and 1."""
        generator = torch.Generator().manual_seed(seed)
        u = self.manifold.random_tangent(x, generator=generator)
        length = 0.2 + 0.8 * torch.rand(
            u.shape[: u.ndim - self.manifold.ndim], generator=generator, dtype=torch.float64
        )
        scale = length / self.manifold.norm(x, u)
        return u * scale[(...,) + (None,) * self.manifold.ndim]

    def origin(self, *batch: int) -> Tensor:
        """Return the origin."""
        return self.manifold.origin(*batch, *self.event_shape, dtype=self.dtype)

    def _close(self, a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
        tolerance = self.tolerance if tolerance is None else tolerance
        scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale, check_dtype=False)

    def _supports(self, *methods: str) -> None:
        missing = self.unsupported.intersection(methods)
        if missing:
            pytest.skip(f"{self.manifold!r} has no closed form for {sorted(missing)}")

    def _moved(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Parametrise points near `x` by ambient vectors, so that finite differences stay on the manifold."""
        return lambda a: self.manifold.retr(x, self.manifold.proju(x, a))

    # Values, checks and shapes.

    def test_value_semantics(self) -> None:
        """Equal settings make equal, hashable, picklable, immutable objects."""
        m = self.manifold
        for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m)), copy.copy(m)):
            assert other == m
            assert hash(other) == hash(m)
        assert m != object()
        assert type(m).__name__ in repr(m)
        for name in vars(m):
            with pytest.raises(AttributeError, match="immutable"):
                setattr(m, name, None)

    def test_unsupported_methods_say_so(self) -> None:
        """A method without closed form raises NotImplementedError that names the manifold."""
        x = self.points(2)
        arity = {"mean": 1, "expmap": 2, "logmap": 2, "dist": 2, "dist2": 2, "center": 2, "uncenter": 2, "transp": 3}
        for name in self.unsupported:
            with pytest.raises(NotImplementedError, match=type(self.manifold).__name__):
                getattr(self.manifold, name)(*(x,) * arity[name])

    def test_random_points_and_origin_are_on_the_manifold(self) -> None:
        """`random`, `origin` and the check agree; a seed repeats."""
        for x in (self.points(5), self.origin(), self.origin(2, 3)):
            ok, reason = self.manifold.check_point_on_manifold(x, explain=True)  # type: ignore[misc]
            assert ok, reason
        assert torch.equal(self.points(3, seed=4), self.points(3, seed=4))
        assert self.points(2, 3).shape == (2, 3, *self.event_shape)

    def test_not_finite_is_rejected_by_index(self) -> None:
        """A NaN in one element of a batch is reported with that element's index."""
        x = self.points(4)
        x[2].view(-1)[0] = torch.nan
        with pytest.raises(ValueError, match=r"point\[2\]"):
            self.manifold.assert_check_point_on_manifold(x, "point")

    def test_projections(self) -> None:
        """Projections are idempotent, land where they should, and leave points and tangent vectors alone."""
        x = self.points(6)
        self._close(self.manifold.projx(x), x)
        noisy = x + 1e-3 * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
        projected = self.manifold.projx(noisy)
        assert self.manifold.check_point_on_manifold(projected)
        self._close(self.manifold.projx(projected), projected)
        u = self.tangents(x)
        self._close(self.manifold.proju(x, u), u)
        assert self.manifold.check_vector_on_tangent(x, u)

    def test_inner_is_symmetric_bilinear_positive(self) -> None:
        """The metric is an inner product, and keepdim only changes the shape."""
        x = self.points(6)
        u, v = self.tangents(x, seed=1), self.tangents(x, seed=2)
        m = self.manifold
        self._close(m.inner(x, u, v), m.inner(x, v, u))
        self._close(m.inner(x, 2 * u + v, v), 2 * m.inner(x, u, v) + m.inner(x, v))
        assert (m.inner(x, u) > 0).all()
        kept = m.inner(x, u, v, keepdim=True)
        assert kept.shape == (6,) + (1,) * m.ndim
        self._close(kept.flatten(), m.inner(x, u, v))
        self._close(m.norm(x, u) ** 2, m.inner(x, u))

    def test_riemannian_gradient_represents_the_differential(self) -> None:
        """<egrad2rgrad(g), v> = sum(g * v) for tangent v, and the gradient is tangent."""
        x = self.points(5)
        g = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(5))
        v = self.tangents(x)
        gradient = self.manifold.egrad2rgrad(x, g)
        assert self.manifold.check_vector_on_tangent(x, gradient)
        expected = (g.conj() * v).real if g.is_complex() else g * v
        self._close(self.manifold.inner(x, gradient, v), expected.flatten(-self.manifold.ndim).sum(-1))

    # Moving and measuring.

    def test_exponential_and_logarithm_are_inverse(self) -> None:
        """log(exp(u)) = u, exp(log(y)) = y, both at zero too."""
        self._supports("expmap", "logmap")
        x = self.points(6)
        u = self.tangents(x)
        self._close(self.manifold.logmap(x, self.manifold.expmap(x, u)), u, 10 * self.tolerance)
        y = self.points(6, seed=1)
        self._close(self.manifold.expmap(x, self.manifold.logmap(x, y)), y, 10 * self.tolerance)
        zero = torch.zeros_like(u)
        self._close(self.manifold.expmap(x, zero), x)
        self._close(self.manifold.logmap(x, x), zero)

    def test_distance(self) -> None:
        """The distance is symmetric, zero at coincident points, and the length of the logarithm."""
        self._supports("dist", "logmap")
        m, x, y = self.manifold, self.points(6), self.points(6, seed=1)
        self._close(m.dist(x, y), m.dist(y, x))
        self._close(m.dist(x, y), m.norm(x, m.logmap(x, y)))
        self._close(m.dist2(x, y), m.dist(x, y) ** 2)
        assert float(m.dist(x, x).max()) <= 1e-7
        assert m.dist(x, y, keepdim=True).shape == (6,) + (1,) * m.ndim

    def test_geodesic(self) -> None:
        """The geodesic ends at its end points and has constant speed."""
        self._supports("geodesic", "dist")
        m, x, y = self.manifold, self.points(4), self.points(4, seed=1)
        self._close(m.geodesic(x, y, 0.0), x, 10 * self.tolerance)
        self._close(m.geodesic(x, y, 1.0), y, 10 * self.tolerance)
        t = torch.tensor([0.1, 0.3, 0.5, 0.9], dtype=torch.float64)
        self._close(m.dist(x, m.geodesic(x, y, t)), t * m.dist(x, y), 10 * self.tolerance)

    def test_retraction(self) -> None:
        """The retraction starts at x with velocity u, to its order."""
        self._supports("expmap", "dist")
        x = self.points()
        report = check_retraction(self.manifold, x, self.tangents(x), order=self.retraction_order)
        assert report.passed, report
        assert self.manifold.check_point_on_manifold(self.manifold.retr(x, self.tangents(x)))

    def test_gradient_slope(self) -> None:
        """The Riemannian gradient of the squared distance is -2 log."""
        self._supports("logmap")
        m, x, y = self.manifold, self.points(), self.points(seed=1)
        report = check_gradient(m, lambda p: m.dist2(p, y), x, generator=torch.Generator().manual_seed(7))
        assert report.passed, report
        p = x.clone().requires_grad_()
        egrad = torch.autograd.grad(m.dist2(p, y), p)[0]
        self._close(m.egrad2rgrad(x, egrad), -2 * m.logmap(x, y), 100 * self.tolerance)

    def test_transport(self) -> None:
        """Transport is an isometry of tangent spaces and turns the initial velocity into the final one."""
        self._supports("transp", "logmap")
        m, x, y = self.manifold, self.points(5), self.points(5, seed=1)
        u, v = self.tangents(x, seed=1), self.tangents(x, seed=2)
        moved_u, moved_v = m.transp(x, y, u), m.transp(x, y, v)
        assert m.check_vector_on_tangent(y, moved_u, atol=1e-9)
        self._close(m.inner(y, moved_u, moved_v), m.inner(x, u, v), 10 * self.tolerance)
        self._close(m.transp(x, y, m.logmap(x, y)), -m.logmap(y, x), 10 * self.tolerance)
        self._close(m.transp(y, x, moved_u), u, 10 * self.tolerance)
        end, carried = m.expmap_transp(x, u, v)
        self._close(end, m.expmap(x, u))
        self._close(m.inner(end, carried), m.inner(x, v), 10 * self.tolerance)

    # Groups.

    def test_group(self) -> None:
        """Identity, inverse, associativity; translations are isometries."""
        m = self.manifold
        if not isinstance(m, LieGroup):
            pytest.skip("not a group")
        x, y, z = self.points(4), self.points(4, seed=1), self.points(4, seed=2)
        e = m.identity(*self.event_shape, dtype=self.dtype)
        self._close(m.mul(x, e), x, 10 * self.tolerance)
        self._close(m.mul(e.expand_as(x), x), x, 10 * self.tolerance)
        self._close(m.mul(x, m.inv(x)), e.expand_as(x), 10 * self.tolerance)
        self._close(m.mul(m.mul(x, y), z), m.mul(x, m.mul(y, z)), 100 * self.tolerance)
        self._close(m.dist(m.translate(x, z), m.translate(y, z)), m.dist(x, y), 100 * self.tolerance)

    # Normalising.

    def test_center_and_uncenter(self) -> None:
        """They are inverse, |center(x, b)| = dist(x, b), and b is centred to zero."""
        self._supports("center")
        m, x, b = self.manifold, self.points(6), self.points(seed=1)
        t = m.center(x, b)
        e = self.origin()
        assert m.check_vector_on_tangent(e.expand_as(t), t)
        self._close(m.uncenter(t, b), x, 10 * self.tolerance)
        self._close(m.norm(e, t), m.dist(x, b), 10 * self.tolerance)
        self._close(m.center(b, b), torch.zeros_like(b))

    def test_codomain_is_isometric(self) -> None:
        """`deform` and `undeform` are inverse and keep distances."""
        self._supports("dist")
        m, x, y = self.manifold, self.points(5), self.points(5, seed=1)
        self._close(m.undeform(m.deform(x)), x)
        self._close(m.codomain.dist(m.deform(x), m.deform(y)), m.dist(x, y), 10 * self.tolerance)

    def test_rescale_is_the_composition(self) -> None:
        """`rescale` may share work but gives uncenter(factor * center)."""
        self._supports("center")
        chart = self.manifold.codomain
        x, mean, bias = (self.manifold.deform(p) for p in (self.points(6), self.points(seed=1), self.points(seed=2)))
        t = chart.center(x, mean)
        origin = chart.origin(*self.event_shape, dtype=self.dtype)
        squared = chart.inner(origin, t)
        seen: list[Tensor] = []

        def factor(d2: Tensor) -> Tensor:
            seen.append(d2)
            return 0.5 / (1 + d2)

        result = chart.rescale(x, mean, bias, factor)
        self._close(seen[0], squared, 10 * self.tolerance)
        scale = (0.5 / (1 + squared))[(...,) + (None,) * self.manifold.ndim]
        self._close(result, chart.uncenter(scale * t, bias), 10 * self.tolerance)

    # Statistics.

    def test_mean_is_stationary(self) -> None:
        """The sum of weighted logarithms at the mean vanishes, for any dims and weights."""
        self._supports("mean", "logmap")
        m = self.manifold
        x = self.points(3, 4)
        w = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        over = (...,) + (None,) * m.ndim
        for weights in (None, w):
            mean = m.mean(x, weights, dim=(0, 1))
            assert mean.shape == self.event_shape
            assert m.check_point_on_manifold(mean)
            share = torch.full((3, 4), 1 / 12.0, dtype=torch.float64) if weights is None else w / w.sum()
            gradient = (share[over] * m.logmap(mean, x)).sum((0, 1))
            assert float(m.norm(mean, gradient)) <= self.mean_tolerance * 10
        by_rows = m.mean(x, w, dim=1)
        self._close(by_rows[1], m.mean(x[1], w[1]), 10 * self.mean_tolerance)
        self._close(m.mean(x, dim=0)[2], m.mean(x[:, 2]), 10 * self.mean_tolerance)
        self._close(m.variance(x[0]), m.dist2(m.mean(x[0]), x[0]).mean(), 10 * self.mean_tolerance)
        same = x[0, :1].expand(5, *self.event_shape)
        self._close(m.mean(same), x[0, 0], 10 * self.mean_tolerance)

    def test_mean_refuses_bad_weights(self) -> None:
        """Weights that are negative, vanish or do not fit, and no points at all, are errors that say so."""
        self._supports("mean")
        m, x = self.manifold, self.points(3)
        for weights, words in (
            (torch.tensor([1.0, -0.5, 1.0]), r"nonnegative and finite, got -0.5 at \[1\]"),
            (torch.tensor([1.0, 1.0, torch.nan]), r"nonnegative and finite, got nan at \[2\]"),
            (torch.zeros(3), "positive sum"),
            (torch.ones(2), r"broadcast to the batch shape of x, \(3,\), got shape \(2,\)"),
        ):
            with pytest.raises(ValueError, match=words):
                m.mean(x, weights)
        with pytest.raises(ValueError, match="must have points to average"):
            m.mean(x[:0])
        self._close(m.mean(x, torch.tensor([0.0, 2.0, 0.0])), x[1], 10 * self.mean_tolerance)

    def test_batch_norm_theorem(self) -> None:
        """Output mean is the bias and output variance s^2 v / (v + eps); running statistics move along geodesics."""
        self._supports("mean", "center")
        m, x, b = self.manifold, self.points(7), self.points(seed=1)
        layer = RiemannianBatchNorm(m, self.event_shape, dtype=self.dtype)
        layer.set_bias_point(b)
        self._close(layer.bias_point, b, 10 * self.tolerance)
        with torch.no_grad():
            layer.weight.fill_(0.7)
        mean, v = m.mean(x), m.variance(x)
        y = layer(x)
        self._close(m.mean(y), b, 100 * self.mean_tolerance)
        self._close(m.variance(y), 0.49 * v / (v + layer.eps), 100 * self.mean_tolerance)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self._close(layer.running_mean, m.geodesic(self.origin(), mean, 0.1), 100 * self.tolerance)
        self._close(layer.running_var, 0.9 + 0.1 * v, 100 * self.tolerance)
        layer.refit(x)
        layer.eval()
        self._close(layer(x), y, 1e3 * self.tolerance)

    def test_batch_norm_survives_identical_points(self) -> None:
        """A batch of one repeated point, and of the origin, has finite output and gradients."""
        self._supports("mean", "center")
        for point in (self.origin(), self.points(seed=1)):
            x = point.expand(4, *self.event_shape).clone().requires_grad_()
            layer = RiemannianBatchNorm(self.manifold, self.event_shape, dtype=self.dtype)
            y = layer(x)
            self._close(y, self.origin(4), 1e-6)
            y.abs().square().sum().backward()
            for grad in (x.grad, layer.weight.grad, layer.bias.grad):
                assert grad is not None
                assert torch.isfinite(torch.view_as_real(grad) if grad.is_complex() else grad).all()

    # Shapes.

    def _unary_of_pairs(self) -> dict[str, Binary]:
        m = self.manifold
        functions: dict[str, Binary] = {}
        if "logmap" not in self.unsupported:
            functions["logmap"], functions["dist"] = m.logmap, m.dist
        if "geodesic" not in self.unsupported:
            functions["geodesic"] = lambda x, y: m.geodesic(x, y, 0.3)
        if "center" not in self.unsupported:
            functions["center"] = m.center
        return functions

    def test_broadcasting_equals_a_loop(self) -> None:
        """(5, 1) against (1, 4) equals twenty single calls; empty, expanded and non-contiguous batches work."""
        x, y = self.points(5, 1), self.points(1, 4, seed=1)
        for function in self._unary_of_pairs().values():
            result = function(x, y)
            loop = torch.stack([torch.stack([function(x[i, 0], y[0, j]) for j in range(4)]) for i in range(5)])
            self._close(result, loop)
            assert function(x[:0], y).shape == (0, 4, *result.shape[2:])
            self._close(
                function(x[:1].expand(3, 1, *self.event_shape), y[:, :1]),
                result[:1, :1].expand(3, 1, *result.shape[2:]),
            )
            strided = self.points(4, 3).transpose(0, 1)
            self._close(function(strided, y[0, 0]), function(strided.contiguous(), y[0, 0]))

    def test_vmap(self) -> None:
        """`torch.func.vmap` over single points equals the batch."""
        x, y = self.points(3), self.points(3, seed=1)
        for function in self._unary_of_pairs().values():
            self._close(torch.func.vmap(function)(x, y), function(x, y))

    def test_batch_norm_channels(self) -> None:
        """Channels are normalised separately, leading dimensions together; other positions go through reduce_dims."""
        self._supports("mean", "center")
        x = self.points(4, 2, 3)
        layer = RiemannianBatchNorm(self.manifold, (3, *self.event_shape), dtype=self.dtype)
        y = layer(x)
        for c in range(3):
            single = RiemannianBatchNorm(self.manifold, self.event_shape, dtype=self.dtype)
            self._close(y[:, :, c], single(x[:, :, c]), 100 * self.tolerance)
        moved = RiemannianBatchNorm(self.manifold, (3, *self.event_shape), reduce_dims=(0, 2), dtype=self.dtype)
        self._close(moved(x.transpose(1, 2)).transpose(1, 2), y, 100 * self.tolerance)

    # Derivatives.

    def _gradcheck(self, function: Callable[..., Tensor], *inputs: Tensor, second: bool) -> None:
        leaves = tuple(a.detach().clone().requires_grad_() for a in inputs)
        assert torch.autograd.gradcheck(function, leaves, atol=1e-6)
        if second:
            assert torch.autograd.gradgradcheck(function, leaves, atol=1e-5, fast_mode=True)

    def test_derivatives(self) -> None:
        """First and second derivatives at random, coincident and origin points, and at zero vectors."""
        self._supports("logmap", "expmap")
        m = self.manifold
        x = torch.stack([self.points(), self.origin(), self.points()])
        y = torch.stack([self.points(seed=1), self.origin(), self.points()])
        zero = torch.zeros_like(x)
        near_x, near_y = self._moved(x), self._moved(y)
        self._gradcheck(lambda a, b: m.dist2(near_x(a), near_y(b)), zero, zero, second=self.second_order)
        self._gradcheck(lambda a, b: m.logmap(near_x(a), near_y(b)), zero, zero, second=self.second_order_maps)
        u = torch.stack([self.tangents(self.points()), torch.zeros_like(x[0]), torch.zeros_like(x[0])])
        self._gradcheck(lambda a, b: m.expmap(near_x(a), m.proju(x, b)), zero, u, second=self.second_order_maps)

    def test_derivatives_of_the_batch_norm(self) -> None:
        """Through mean and variance, in all parameters; also with repeated points."""
        self._supports("mean", "center")
        m = self.manifold
        for x in (self.points(4), torch.stack([self.points(seed=2)] * 3 + [self.points(seed=3)])):
            layer = RiemannianBatchNorm(m, self.event_shape, track_running_stats=False, dtype=self.dtype)
            near = self._moved(x)

            def run(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (near(a),))  # noqa: B023

            bias = 0.3 * self.tangents(self.origin())
            weight = torch.tensor(0.8, dtype=torch.float64)
            self._gradcheck(run, torch.zeros_like(x), weight, bias, second=self.second_order_mean)

    def test_gradient_of_distance_at_coincident_points(self) -> None:
        """It is zero there, and one such row does not poison the others."""
        self._supports("dist")
        m, x = self.manifold, self.points(2)
        y = torch.stack([x[0], self.points(seed=1)])
        p = x.clone().requires_grad_()
        m.dist(p, y).sum().backward()
        assert p.grad is not None
        assert float(p.grad[0].abs().max()) == 0
        rgrad = m.egrad2rgrad(x, p.grad)
        self._close(m.norm(x[1], rgrad[1]), torch.ones((), dtype=torch.float64), 1e3 * self.tolerance)

    # Precision and transformations.

    def test_float32(self) -> None:
        """float32 results agree with float64 ones on the same inputs and keep their dtype."""
        single = torch.complex64 if self.dtype.is_complex else torch.float32
        x, y = self.points(8).to(single), self.points(8, seed=1).to(single)
        x, y = self.manifold.projx(x), self.manifold.projx(y)
        for function in self._unary_of_pairs().values():
            result = function(x, y)
            assert result.dtype in (single, torch.float32)
            self._close(
                result.to(function(x[:0], y[:0]).dtype),
                function(x.to(self.dtype), y.to(self.dtype)).to(result.dtype),
                self.float32_tolerance,
            )
        if "mean" not in self.unsupported:
            self._close(self.manifold.mean(x), self.manifold.mean(x.to(self.dtype)).to(single), self.float32_tolerance)

    @pytest.mark.slow
    def test_compile_fullgraph(self) -> None:
        """`torch.compile(fullgraph=True)` gives the same values and gradients."""
        x, y = self.points(3), self.points(3, seed=1)
        torch._dynamo.reset()
        for function in self._unary_of_pairs().values():
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            results = []
            for run in (function, compiled):
                a = x.clone().requires_grad_()
                value = run(a, y)
                results.append((value.detach(), torch.autograd.grad(value.abs().sum(), a)[0]))
            self._close(results[1][0], results[0][0])
            self._close(results[1][1], results[0][1], 100 * self.tolerance)

    def test_geoopt_optimizers_train(self) -> None:
        """Riemannian Adam and SGD of geoopt bring a point to the mean of others and keep it on the manifold."""
        self._supports("transp", "mean")
        geoopt = pytest.importorskip("geoopt")
        m, x = self.manifold, self.points(6)
        target = m.mean(x)
        for make in (
            lambda p: geoopt.optim.RiemannianAdam([p], lr=5e-2),
            lambda p: geoopt.optim.RiemannianSGD([p], lr=5e-2, momentum=0.5),
        ):
            parameter = geoopt.ManifoldParameter(self.points(seed=9), manifold=m)
            optimizer = make(parameter)
            start = float(m.dist(parameter.detach(), target))
            for _ in range(60):
                optimizer.zero_grad()
                m.dist2(parameter, x).mean().backward()
                optimizer.step()
            assert m.check_point_on_manifold(parameter.detach(), atol=1e-8)
            assert float(m.dist(parameter.detach(), target)) < 0.2 * start
