"""The Poincaré ball in both charts: the suite, golden values, published faults, and what is true of it alone."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.checks import ConvergenceWarning
from manifoldnorm.manifolds.poincare import PoincareBall, PoincareLogChart
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

CURVATURES = ("0.1", "1")
FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_poincare.json").read_text())}


class TestBall(ManifoldSuite):
    manifold = PoincareBall()
    event_shape = (3,)


class TestBallFlat(ManifoldSuite):
    manifold = PoincareBall(c=0.1)
    event_shape = (2,)

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        """Within reach of sixty optimizer steps of length 0.05: the default spread is 1/sqrt(c)."""
        return 0.3 * super().points(*batch, seed=seed)


class TestBallCurved(ManifoldSuite):
    manifold = PoincareBall(c=5.0)
    event_shape = (4,)


class TestLogChart(ManifoldSuite):
    manifold = PoincareLogChart()
    event_shape = (3,)


class TestLogChartFlat(ManifoldSuite):
    manifold = PoincareLogChart(c=0.1)
    event_shape = (1,)


def golden(c: str) -> tuple[PoincareBall, dict[str, Tensor]]:
    with np.load(GOLDEN / f"poincare_c{c}.npz") as file:
        values = {key: torch.from_numpy(file[key]) for key in file}
    return PoincareBall(float(values["c"])), values


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


def results(ball: PoincareBall, g: dict[str, Tensor]) -> dict[str, Tensor]:
    x, y, v, w = g["x"], g["y"], g["v"], g["w"]
    return {
        "mobius_add": ball.mobius_add(x, y),
        "exp0": ball.undeform(v),
        "log0": ball.deform(x),
        "expmap": ball.expmap(x, v),
        "logmap": ball.logmap(x, y),
        "dist": ball.dist(x, y),
        "lambda_x": ball.norm(x, torch.eye(4, dtype=x.dtype)[0]),
        "transp_x_to_y_v": ball.transp(x, y, v),
        "gyration_x_y_v": ball.gyration(x, y, v),
        "midpoint": ball.midpoint(x),
        "midpoint_w": ball.midpoint(x, w),
        "frechet_mean": ball.mean(x),
        "frechet_mean_w": ball.mean(x, w),
        "frechet_var": ball.variance(x),
        "mid_var": ball.variance(x, ball.midpoint(x)),
        "beta_concat_x_x2": ball.beta_concat([x, g["x2_dim3"]]),
    }


@pytest.mark.parametrize("c", CURVATURES)
def test_golden_values(c: str) -> None:
    """Every stored quantity to 1e-12 (means 1e-11): fifty-digit arithmetic on the same inputs."""
    ball, g = golden(c)
    for name, value in results(ball, g).items():
        close(value, g[name], 1e-11 if "frechet" in name else 1e-12)


@pytest.mark.parametrize("c", CURVATURES)
def test_golden_values_in_float32(c: str) -> None:
    ball, g = golden(c)
    single = {key: value.float() for key, value in g.items()}
    for name, value in results(ball, single).items():
        assert value.dtype == torch.float32
        close(value, g[name], 1e-5)


@pytest.mark.parametrize("c", CURVATURES)
def test_log_chart_is_the_same_manifold(c: str) -> None:
    """The chart's own formulas agree with the ball's through the diffeomorphism, vectors through its differential."""
    ball, g = golden(c)
    chart = PoincareLogChart(ball.c)
    u, z = ball.deform(g["x"]), ball.deform(g["y"])
    log, push = torch.func.jvp(ball.undeform, (u,), (chart.logmap(u, z),))
    close(log, g["x"], 1e-12)
    close(push, g["logmap"], 1e-11)
    v = torch.func.jvp(ball.deform, (g["x"],), (g["v"],))[1]
    close(ball.undeform(chart.expmap(u, v)), g["expmap"], 1e-11)
    moved = torch.func.jvp(ball.undeform, (z,), (chart.transp(u, z, v),))[1]
    close(moved, g["transp_x_to_y_v"], 1e-11)
    close(ball.undeform(chart.mean(u, g["w"])), g["frechet_mean_w"], 1e-11)
    close(ball.undeform(chart.midpoint(u, g["w"])), g["midpoint_w"], 1e-12)


# Published faults of other libraries.


def fault(case: str, *names: str) -> list[Tensor]:
    dtype = getattr(torch, FAULTS[case]["dtype"])
    return [torch.tensor(FAULTS[case]["inputs"][name], dtype=dtype) for name in names]


def test_distance_does_not_saturate_near_the_rim() -> None:
    x, y = fault("S08", "x", "y")
    assert float(PoincareBall().dist(x, y)) == pytest.approx(FAULTS["S08"]["expected"], rel=1e-6)


def test_float32_distance_of_near_points_keeps_its_digits() -> None:
    x, y = fault("S09", "x", "y")
    assert float(PoincareBall().dist(x, y)) == pytest.approx(FAULTS["S09"]["expected"], rel=1e-5)


def test_distance_to_itself_is_zero_with_zero_gradient() -> None:
    x, y = fault("S10", "x", "y")
    x.requires_grad_()
    distance = PoincareBall().dist(x, y)
    distance.backward()
    assert float(distance.detach()) == 0
    assert x.grad is not None
    assert x.grad.tolist() == FAULTS["S10"]["expected"]["grad_x"]


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 15.0), (torch.float64, 35.0)])
def test_large_tangents_stay_strictly_inside(dtype: torch.dtype, least: float) -> None:
    ball = PoincareBall()
    v = fault("S11", "v")[0].to(dtype).requires_grad_()
    x = ball.undeform(v)
    assert float((x.detach().double() ** 2).sum()) < 1
    close((x / x.norm()).detach(), (v / v.norm()).detach(), 1e-6)
    distance = ball.dist(x, torch.zeros_like(x))
    assert least <= float(distance.detach()) < math.inf
    (distance + ball.deform(x).sum()).backward()
    assert v.grad is not None
    assert torch.isfinite(v.grad).all()


def test_projection_scales_with_the_curvature() -> None:
    x, c, s = fault("S12", "x", "c", "s")
    scaled = PoincareBall(float(c * s**2)).projx(x / s) * s
    torch.testing.assert_close(scaled, PoincareBall(float(c)).projx(x), rtol=1e-12, atol=0)


def test_midpoint_uses_the_lorentz_factor() -> None:
    x, w = fault("S13", "x", "weights")
    close(PoincareBall().midpoint(x, w), torch.tensor(FAULTS["S13"]["expected"], dtype=torch.float64), 1e-10)


def test_mean_with_curvature_other_than_one() -> None:
    x, w = fault("S14", "x", "weights")
    close(PoincareBall(2.0).mean(x, w), torch.tensor(FAULTS["S14"]["expected"], dtype=torch.float64), 1e-8)


# Laws beyond the suite.


def test_gyrogroup_laws() -> None:
    """Left cancellation, inverses, gyrations that rotate, and the gyroassociative law."""
    ball = PoincareBall(0.7)
    x, y, z = (ball.random(20, 4, dtype=torch.float64) for _ in range(3))
    close(ball.mobius_add(-x, x), torch.zeros_like(x), 1e-15)
    close(ball.mobius_add(-x, ball.mobius_add(x, y)), y, 1e-13)
    turned = ball.gyration(x, y, z)
    close(turned.norm(dim=-1), z.norm(dim=-1), 1e-13)
    close(ball.mobius_add(x, ball.mobius_add(y, z)), ball.mobius_add(ball.mobius_add(x, y), turned), 1e-12)
    close(ball.mobius_scalar_mul(2.0, x), ball.mobius_add(x, x), 1e-13)


def test_midpoint_commutes_with_translations_and_differs_from_the_mean() -> None:
    ball = PoincareBall()
    x, a = ball.random(9, 3, dtype=torch.float64), ball.random(3, dtype=torch.float64)
    close(ball.midpoint(ball.mobius_add(a, x)), ball.mobius_add(a, ball.midpoint(x)), 1e-13)
    assert float((ball.midpoint(x) - ball.mean(x)).norm()) > 1e-3


def test_beta_split_undoes_concatenation() -> None:
    ball = PoincareBall(0.3)
    parts = [ball.random(5, n, dtype=torch.float64) for n in (1, 4, 2)]
    for part, original in zip(ball.beta_split(ball.beta_concat(parts), [1, 4, 2]), parts):
        close(part, original, 1e-14)


def test_float32_at_the_rim_agrees_with_float64() -> None:
    """float32 points whose gap to the rim is a few eps: exact gaps, so distances to six digits."""
    ball = PoincareBall()
    x = torch.tensor([[0.99999976, 0.0], [0.0, -0.9999995]])
    y = torch.tensor([[0.9999, 1e-3], [0.6, 0.7999]])
    reference = ball.dist(x.double(), y.double())
    torch.testing.assert_close(ball.dist(x, y).double(), reference, rtol=1e-6, atol=0)
    v = ball.logmap(x, y)
    torch.testing.assert_close(v.double(), ball.logmap(x.double(), y.double()), rtol=1e-6, atol=0)
    there = ball.expmap(x.double(), v.double())
    torch.testing.assert_close(ball.expmap(x, v).double(), there, rtol=1e-6, atol=1e-6)


def test_boost_error_grows_like_exp_rho_not_its_square() -> None:
    """float32 against float64 at rho = 9 and 12, for points near, opposite and across: eps e^rho, not eps e^(2 rho)."""
    generator = torch.Generator().manual_seed(5)
    for rho in (9.0, 12.0):
        x = torch.randn(200, 6, generator=generator)
        x = rho / 2 * x / x.norm(dim=-1, keepdim=True)
        y = 0.3 * torch.randn(200, 6, generator=generator)
        turned = x[torch.randperm(200, generator=generator)]
        near = maps.boost(x.double(), y.double(), 1.0, -1).float()
        for left, right in ((-x, near), (x, near), (x, y), (y, x), (x, turned), (near, -x), (x, -x), (x, -1.01 * x)):
            exact = PoincareLogChart().projx(maps.boost(left.double(), right.double(), 1.0, -1).float()).double()
            error = (maps.boost(left, right, 1.0, -1) - exact).norm(dim=-1)
            assert float(error.max()) < 8 * torch.finfo(torch.float32).eps * math.exp(rho)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_beyond_all_resolution_end_at_the_cut(dtype: torch.dtype) -> None:
    """A tangent vector whose cosh overflows gives the farthest point in its direction, with finite gradients."""
    chart = PoincareLogChart(1.0)
    start = torch.tensor([0.3, -0.4], dtype=dtype)
    step = torch.tensor([[3e3, 4e3], [-30.0, 0.0]], dtype=dtype, requires_grad=True)
    end = chart.uncenter(step, start)
    torch.testing.assert_close(2 * end.norm(dim=1), torch.full((2,), maps.largest_radius(dtype), dtype=dtype))
    assert torch.isfinite(torch.autograd.grad(end.square().sum(), step)[0]).all()


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_frechet_mean_converges_for_wide_spreads(spread: float) -> None:
    chart = PoincareLogChart()
    x = spread * torch.randn(16, 5, dtype=torch.float64)
    mean = chart.mean(x)
    residual = maps.boost(-mean, x, 1.0, -1).mean(0).norm()
    assert float(residual) < 1e-12 * max(1.0, math.exp(2 * spread))


def test_frechet_mean_of_long_vectors_uses_the_same_equations() -> None:
    """Above 64 dimensions the Hessian is applied, not formed; the mean and its gradient do not change."""
    chart = PoincareLogChart(0.5)
    x = (0.2 * torch.randn(7, 70, dtype=torch.float64)).requires_grad_()
    mean = chart.mean(x)
    residual = maps.boost(-mean, x, 0.5, -1).mean(0).norm().detach()
    assert float(residual) < 1e-13
    weight = torch.randn(70, dtype=torch.float64)
    gradient = torch.autograd.grad((mean * weight).sum(), x)[0]
    direction = torch.randn_like(x)
    h = 1e-5
    with torch.no_grad():
        ahead, behind = (chart.mean(x + t * direction) @ weight for t in (h, -h))
    assert float((gradient * direction).sum()) == pytest.approx(float((ahead - behind) / (2 * h)), rel=1e-6)


def test_gradients_in_curvature_and_weights() -> None:
    """c may be learned: means, distance and maps are differentiable in it, at the origin and at equal points too."""
    x = torch.stack([0.4 * torch.ones(3), torch.zeros(3), 0.4 * torch.ones(3), torch.tensor([0.1, -0.3, 0.2])]).double()
    w = torch.rand(4, dtype=torch.float64)
    y = x.flip(0)
    c = torch.tensor(0.8, dtype=torch.float64)
    for function in (
        lambda c, x, w: PoincareLogChart(c).mean(x, w),
        lambda c, x, w: PoincareLogChart(c).midpoint(x, w),
        lambda c, x, w: PoincareBall(c).mean(x, w),
        lambda c, x, w: PoincareBall(c).dist2(x, y),
        lambda c, x, w: PoincareBall(c).expmap(x, y),
        lambda c, x, w: PoincareBall(c).logmap(x, y),
        lambda c, x, w: PoincareBall(c).transp(x, y, y),
        lambda c, x, w: PoincareLogChart(c).transp(x, y, y),
    ):
        leaves = tuple(t.clone().requires_grad_() for t in (c, x, w))
        assert torch.autograd.gradcheck(function, leaves, atol=1e-6)


def test_small_curvature_is_euclidean() -> None:
    ball = PoincareBall(1e-12)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    close(ball.mobius_add(x, y), x + y, 1e-9)
    close(ball.dist(x, y), 2 * (x - y).norm(dim=-1), 1e-9)
    close(ball.mean(x), x.mean(0), 1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_and_stays_inside(dtype: torch.dtype) -> None:
    ball = PoincareBall()
    x = ball.undeform(torch.tensor([[3.0, 4.0], [0.1, 0.2]], dtype=dtype))
    assert x.dtype == dtype
    assert ball.check_point_on_manifold(x)
    assert torch.isfinite(ball.dist(x, x.flip(0))).all()


def test_bad_input_is_explained() -> None:
    """A curvature that is not positive, a point outside by index, and NaN instead of a finite wrong number."""
    for c in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="c must be positive"):
            PoincareBall(c)
    with pytest.raises(ValueError, match="scalar"):
        PoincareBall(torch.ones(3))
    outside = torch.tensor([[0.1, 0.2], [1.5, 0.0]])
    with pytest.raises(ValueError, match=r"x\[1\].*shorter than 1/sqrt\(c\) = 1, but its norm is 1.5; projx"):
        PoincareBall().assert_check_point_on_manifold(outside)
    assert PoincareBall(0.25).check_point_on_manifold(outside)
    assert not bool(PoincareBall().is_plausible(outside))
    for value in (PoincareBall().dist(outside, outside.flip(0)), PoincareBall().deform(outside)[1]):
        assert torch.isnan(value).all()
    with pytest.raises(ValueError, match="sizes must be positive and sum to 3"):
        PoincareBall().beta_split(torch.zeros(3), [1, 1])


def test_infinite_entries_are_projected_and_nan_is_not() -> None:
    ball = PoincareBall()
    x = torch.tensor([[math.inf, 0.0], [3e38, -3e38], [math.nan, 0.0]])
    projected = ball.projx(x)
    assert ball.check_point_on_manifold(projected[:2])
    assert torch.isnan(projected[2]).any()


def test_unreachable_tolerance_warns() -> None:
    """Points that float32 cannot tell from the horizon leave a residual that is reported, not hidden."""
    chart = PoincareLogChart()
    x = torch.tensor([[400.0, 0.0], [-400.0, 1.0], [0.0, 400.0]])
    with pytest.warns(ConvergenceWarning, match="hyperbolic space"):
        chart.mean(x)
