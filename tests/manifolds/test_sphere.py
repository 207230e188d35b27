"""The hypersphere: the laws of every geometry, close and antipodal points, the retractions, the mean."""

from __future__ import annotations

import json
import math
import warnings

import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg import safe_norm
from manifoldnorm.linalg.rotation import turning_angle, turning_length
from manifoldnorm.manifolds import ConvergenceWarning
from manifoldnorm.manifolds.sphere import Sphere
from manifoldnorm.testing import ManifoldSuite, check_retraction
from tests.conftest import GOLDEN

CASES = {case["id"]: case for case in json.loads((GOLDEN / "faults_sphere.json").read_text())}
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def _input(case: str, name: str) -> Tensor:
    return torch.tensor(CASES[case]["inputs"][name], dtype=DTYPES[CASES[case]["dtype"]])


class _InACap(ManifoldSuite):
    """The laws hold within an injectivity radius: points at most 0.8 rad from one another's centre."""

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(*batch, *self.event_shape, generator=generator, dtype=self.dtype)
        centre = self.manifold.projx(torch.tensor([1.0, -2.0, 0.5, 1.0, 3.0][: self.event_shape[0]], dtype=self.dtype))
        u = self.manifold.proju(centre, noise)
        return self.manifold.expmap(centre, 0.6 * self.radius * u / (1 + u.norm(dim=-1, keepdim=True)))

    @property
    def radius(self) -> float:
        assert isinstance(self.manifold, Sphere)
        return self.manifold.radius


class TestSphere(_InACap):
    manifold = Sphere()
    event_shape = (3,)


class TestLargeSphere(_InACap):
    manifold = Sphere(radius=2.5)
    event_shape = (5,)


class TestProjectionRetraction(_InACap):
    manifold = Sphere(retraction=1.0)
    event_shape = (4,)
    retraction_order = 2


class TestCayleyRetraction(_InACap):
    manifold = Sphere(radius=0.5, retraction=2.0)
    event_shape = (3,)
    retraction_order = 2


# Fault cases.


def test_distance_and_logarithm_of_close_points_in_float32() -> None:
    """An arccosine of a clamped inner product gives 0.0141 for every angle below 0.014."""
    x, y = _input("S01a", "x"), _input("S01a", "y")
    assert float(Sphere().dist(x, y)) == pytest.approx(CASES["S01a"]["expected"], rel=2e-3)
    torch.testing.assert_close(Sphere().logmap(x, y), torch.tensor(CASES["S01b"]["expected"]), rtol=2e-3, atol=1e-7)
    assert float(Sphere().dist(x, x)) == 0


@pytest.mark.parametrize("angle", [1e-30, 1e-12, 1e-7, 1e-4, 1e-2, 0.5, math.pi / 2, 3.0, math.pi - 1e-3])
@pytest.mark.parametrize("radius", [1.0, 8.0])
def test_float32_keeps_its_digits_at_every_angle(angle: float, radius: float) -> None:
    """Along the first axis y is exact, so the angle is known."""
    sphere = Sphere(radius)
    x = torch.tensor([radius, 0.0, 0.0])
    y = (radius * torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=torch.float64)).float()
    exact = math.atan2(float(y[1].double()), float(y[0].double())) * radius
    assert float(sphere.dist(x, y)) == pytest.approx(exact, rel=3e-7)
    log = sphere.logmap(x, y)
    assert float(safe_norm(log)) == pytest.approx(exact, rel=1e-6)
    torch.testing.assert_close(log / safe_norm(log), torch.tensor([0.0, 1.0, 0.0]), rtol=0, atol=2e-4)


def test_logarithm_near_the_antipode() -> None:
    """Its length is close to pi, not 0 or NaN."""
    log = Sphere().logmap(_input("S02", "x"), _input("S02", "y"))
    torch.testing.assert_close(log, torch.tensor(CASES["S02"]["expected"], dtype=torch.float64), rtol=1e-7, atol=0)


def test_logarithm_at_the_antipode() -> None:
    """It is one of the shortest directions, of length pi, with finite gradients, and leads there."""
    x, y = _input("S03", "x").requires_grad_(), _input("S03", "y").requires_grad_()
    log = Sphere().logmap(x, y)
    assert float(log.detach().norm()) == pytest.approx(math.pi, rel=1e-15)
    assert float((log * x).sum().detach()) == 0
    torch.testing.assert_close(Sphere().expmap(x, log), y, rtol=0, atol=1e-15)
    log.sum().backward()
    for grad in (x.grad, y.grad):
        assert grad is not None
        assert torch.isfinite(grad).all()
    v = torch.tensor([0.0, 0.3, 0.4], dtype=torch.float64)
    moved = Sphere().transp(x.detach(), y.detach(), v)
    torch.testing.assert_close(moved, Sphere().expmap_transp(x.detach(), log.detach(), v)[1], rtol=0, atol=1e-15)


def test_transport_is_continuous_at_the_antipode() -> None:
    """Nearly antipodal points transport as the antipodal ones in the same direction do, in float32 too."""
    x = torch.tensor([1.0, 0.0, 0.0])
    y = torch.tensor([-1.0, 1e-5, 0.0])
    v = torch.tensor([0.0, 0.3, 0.4])
    torch.testing.assert_close(Sphere().transp(x, y, v), torch.tensor([0.0, -0.3, 0.4]), rtol=0, atol=1e-5)


def test_gradient_of_the_distance_is_not_poisoned() -> None:
    """A coincident pair has gradient zero and leaves its neighbour alone."""
    x, y, expected = _input("S04", "x").requires_grad_(), _input("S04", "y"), CASES["S04"]["expected"]
    distance = Sphere().dist(x, y)
    torch.testing.assert_close(distance, torch.tensor(expected["value"], dtype=torch.float64))
    distance.sum().backward()
    assert x.grad is not None
    rgrad = Sphere().egrad2rgrad(x.detach(), x.grad)
    torch.testing.assert_close(
        rgrad, torch.tensor(expected["riemannian_grad_x"], dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_projection_of_extreme_norms() -> None:
    """Norms whose square over- or underflows, half precision, and zero, which has no nearest point."""
    torch.testing.assert_close(
        Sphere().projx(_input("S05", "x")), torch.tensor(CASES["S05"]["expected"]), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(Sphere().projx(torch.tensor([3e-30, -4e-30])), torch.tensor([0.6, -0.8]))
    x = _input("S06", "x").requires_grad_()
    y = Sphere().projx(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.detach().double(), torch.tensor(CASES["S06"]["expected"]).double(), rtol=0, atol=2e-3)
    y.float().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    projected = Sphere().projx(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    assert torch.isnan(projected[0]).all()
    torch.testing.assert_close(projected[1], torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Every method returns the input's dtype, with the float32 result rounded once."""
    sphere = Sphere(2.0, retraction=1.0)
    x = sphere.random(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = sphere.random(4, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    for result, reference in (
        (sphere.dist(x, y), sphere.dist(x.float(), y.float())),
        (sphere.logmap(x, y), sphere.logmap(x.float(), y.float())),
        (sphere.retr(x, y), sphere.retr(x.float(), y.float())),
        (sphere.transp(x, y, x), sphere.transp(x.float(), y.float(), x.float())),
        (sphere.retr_transp(x, y, y)[1], sphere.retr_transp(x.float(), y.float(), y.float())[1]),
        (sphere.center(x, y), sphere.center(x.float(), y.float())),
    ):
        assert result.dtype == dtype
        torch.testing.assert_close(result, reference.to(dtype), rtol=0, atol=0)


# Retractions.


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_retraction_stays_on_the_sphere_and_turns_by_its_angle(p: float) -> None:
    """|retr(x, u)| = R and the angle is p atan(t / p), as long as that is below pi."""
    sphere = Sphere(1.5, retraction=p)
    x = sphere.random(7, 5, dtype=torch.float64)
    u = sphere.random_tangent(x)
    t = torch.linspace(0.0, 2.0, 7, dtype=torch.float64)
    y = sphere.retr(x, u / u.norm(dim=-1, keepdim=True) * t[:, None] * 1.5)
    assert sphere.check_point_on_manifold(y, atol=1e-14)
    torch.testing.assert_close(sphere.dist(x, y) / 1.5, turning_angle(t, p), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0])
def test_inverse_retraction(p: float) -> None:
    """It inverts the retraction, is zero at coincident points, and NaN out of reach."""
    sphere = Sphere(2.0, retraction=p)
    x = sphere.random(6, 4, dtype=torch.float64)
    u = sphere.random_tangent(x)
    torch.testing.assert_close(sphere.inverse_retr(x, sphere.retr(x, u)), u, rtol=1e-10, atol=1e-12)
    assert torch.equal(sphere.inverse_retr(x, x), torch.zeros_like(x))
    assert torch.isnan(sphere.inverse_retr(x, -x)).all() or p == 2.0
    if p == 1.0:
        y = sphere.expmap(x, 0.9 * u / u.norm(dim=-1, keepdim=True))
        closed = 4.0 * y / (x * y).sum(-1, keepdim=True) - x
        torch.testing.assert_close(sphere.inverse_retr(x, y), closed, rtol=1e-12, atol=1e-12)


def test_inverse_retraction_says_where_there_is_none() -> None:
    with pytest.raises(NotImplementedError, match="logmap"):
        Sphere(retraction=3.0).inverse_retr(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("p", [0.7, 1.0, 2.0, 4.0, math.inf])
def test_retraction_transport_is_the_rotation(p: float) -> None:
    """Vectors keep their inner products, and the direction of motion stays it."""
    sphere = Sphere(3.0, retraction=p)
    x = sphere.random(5, 6, dtype=torch.float64)
    u, v, w = (sphere.random_tangent(x) for _ in range(3))
    y, moved_v, moved_w = sphere.retr_transp(x, u, v, w)
    assert sphere.check_vector_on_tangent(y, moved_v)
    torch.testing.assert_close(sphere.inner(y, moved_v, moved_w), sphere.inner(x, v, w), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_every_retraction_is_of_second_order(p: float) -> None:
    """theta = t - t^3 / (3 p^2): it differs from the exponential map in the third order."""
    sphere = Sphere(retraction=p)
    x = sphere.random(5, dtype=torch.float64)
    assert check_retraction(sphere, x, sphere.random_tangent(x), order=2).passed


def test_turning_length_inverts_the_angle() -> None:
    angle = torch.tensor([0.0, 0.3, 1.2, 1.6], dtype=torch.float64)
    for p in (1.0, 2.0, 3.0, math.inf):
        length = turning_length(angle, p)
        reachable = angle < p * math.pi / 2
        torch.testing.assert_close(turning_angle(length[reachable], p), angle[reachable])
        assert torch.isnan(length[~reachable]).all()


# Mean.


def test_mean_is_the_minimiser_for_spread_points() -> None:
    """Beyond a hemisphere unit steps may rise; the safeguarded ones reach a point with no better neighbour."""
    sphere = Sphere()
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = sphere.random(6, 3, generator=generator, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            mean = sphere.mean(x)
        cost = sphere.dist2(mean, x).mean()
        for _ in range(20):
            other = sphere.expmap(mean, 0.01 * sphere.random_tangent(mean, generator=generator))
            assert float(sphere.dist2(other, x).mean()) >= float(cost) - 1e-12


def test_mean_of_antipodal_points_is_on_their_equator() -> None:
    """The arithmetic mean is zero there, which must not become NaN."""
    x = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    mean = Sphere().mean(x)
    torch.testing.assert_close(Sphere().dist(mean, x), torch.full((2,), math.pi / 2, dtype=torch.float64))


def test_mean_of_long_vectors_uses_no_matrix() -> None:
    """Above 64 dimensions the Hessian is applied, not formed; value and gradient are right."""
    sphere = Sphere()
    x = sphere.expmap(
        sphere.origin(80, dtype=torch.float64), 0.05 * sphere.random_tangent(sphere.origin(9, 80, dtype=torch.float64))
    )
    x.requires_grad_()
    mean = sphere.mean(x)
    pull = sphere.logmap(mean, x).mean(0)
    assert float(pull.norm().detach()) <= 1e-13
    c = torch.randn(80, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (grad,) = torch.autograd.grad((c * mean).sum(), x)
    direction = sphere.proju(
        x.detach(), torch.randn(9, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    )
    h = 1e-5
    with torch.no_grad():
        ends = [(c * sphere.mean(sphere.expmap(x, s * h * direction))).sum() for s in (1, -1)]
    assert float((grad * direction).sum()) == pytest.approx(float((ends[0] - ends[1]) / (2 * h)), rel=1e-6)


def test_fixed_steps_approach_the_mean() -> None:
    """A few steps without convergence test give the mean of points in a cap to round-off."""
    sphere = Sphere()
    x = sphere.expmap(
        sphere.origin(4, dtype=torch.float64), 0.3 * sphere.random_tangent(sphere.origin(10, 4, dtype=torch.float64))
    )
    torch.testing.assert_close(sphere.mean(x, steps=5), sphere.mean(x), rtol=0, atol=1e-14)


def test_a_bad_row_stays_alone_in_the_mean() -> None:
    x = Sphere().random(5, 2, 3, dtype=torch.float64)
    x[0, 1, 0] = torch.nan
    mean = Sphere().mean(x)
    assert torch.isfinite(mean[0]).all()
    assert torch.isnan(mean[1]).all()


# Arguments.


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_bad_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="radius"):
        Sphere(radius)


@pytest.mark.parametrize("p", [0.0, -1.0, math.nan])
def test_bad_retraction(p: float) -> None:
    with pytest.raises(ValueError, match="retraction"):
        Sphere(retraction=p)


def test_a_retraction_is_a_number() -> None:
    with pytest.raises(TypeError, match="retraction must be a number"):
        Sphere(retraction="cayley")  # type: ignore[arg-type]


def test_equality_is_by_value() -> None:
    assert Sphere(2.0, retraction=1.0) == Sphere(2.0, retraction=1.0)
    assert Sphere(2.0) != Sphere(2.0, retraction=1.0)
    assert repr(Sphere()) == "Sphere(radius=1.0, retraction=inf)"


def test_points_off_the_sphere_are_named() -> None:
    with pytest.raises(ValueError, match=r"x\[1\].*norm 1"):
        Sphere().assert_check_point_on_manifold(torch.tensor([[1.0, 0.0], [1.0, 0.1]]))
    with pytest.raises(ValueError, match="coordinate"):
        Sphere().origin(0)
