"""Laws of single points: projections, metric, exponentials, distances, transport, groups, centering."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds import LieGroup
from manifoldnorm.testing.slopes import check_gradient, check_retraction
from manifoldnorm.testing.suite_samples import ManifoldSamples


class GeometryLaws(ManifoldSamples):
    """The part of `ManifoldSuite` that is about points and tangent vectors."""

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
