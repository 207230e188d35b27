"""Complex unit ball and Poincaré disk: the suite, golden values, and agreement with matrices of one column."""

import json

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds.complex_ball import ComplexBall, PoincareDisk
from manifoldnorm.manifolds.poincare import PoincareBall
from manifoldnorm.manifolds.siegel import MatrixBall
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_complex.json").read_text())}


class TestComplexBall(ManifoldSuite):
    manifold = ComplexBall()
    event_shape = (3,)
    dtype = torch.complex128
    second_order_mean = False


class TestPoincareDisk(ManifoldSuite):
    manifold = PoincareDisk(scale=2.0)
    event_shape = (1,)
    dtype = torch.complex128
    second_order_mean = False


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("p", "ball"), [(1, ComplexBall()), (1, PoincareDisk()), (2, ComplexBall()), (4, ComplexBall())]
)
def test_golden(p: int, ball: ComplexBall) -> None:
    with np.load(GOLDEN / "siegel_ball_hpd.npz") as file:
        g = {
            key: torch.from_numpy(np.asarray(file[f"ball{p}_{key}"]))
            for key in ("Z", "W", "phi", "dist_c1", "log", "karcher", "var_c1")
        }
    z, w = g["Z"], g["W"]
    close(ball.translate(z, w), g["phi"])
    close(ball.translate(g["phi"], -w), z)
    close(ball.dist(z, w), g["dist_c1"])
    close(type(ball)(scale=2.0).dist(z, w), 2 * g["dist_c1"])
    close(ball.logmap(w, z), g["log"])
    close(ball.mean(z), g["karcher"])
    close(ball.variance(z), g["var_c1"])


@pytest.mark.parametrize("p", [1, 3])
def test_closed_forms_are_those_of_matrices_of_one_column(p: int) -> None:
    """The gauge too: center and uncenter agree, not only what isometries keep."""
    ball, matrices = ComplexBall(scale=1.5), MatrixBall(scale=1.5)
    x, y = (ball.random(6, p, generator=torch.Generator().manual_seed(s), dtype=torch.complex128) for s in (0, 1))
    u, v = (torch.randn(6, p, dtype=torch.complex128) for _ in range(2))
    columns = [a.unsqueeze(-1) for a in (x, y, u, v)]
    cx, cy, cu, cv = columns
    for name, vectors, matrix_arguments in (
        ("expmap", (x, u), (cx, cu)),
        ("logmap", (x, y), (cx, cy)),
        ("translate", (x, y), (cx, cy)),
        ("center", (x, y), (cx, cy)),
        ("uncenter", (u, y), (cu, cy)),
        ("transp", (x, y, u), (cx, cy, cu)),
        ("egrad2rgrad", (x, u), (cx, cu)),
        ("projx", (3 * u,), (3 * cu,)),
    ):
        close(getattr(ball, name)(*vectors), getattr(matrices, name)(*matrix_arguments).squeeze(-1), 1e-13)
    close(ball.inner(x, u, v), matrices.inner(cx, cu, cv), 1e-13)
    close(ball.dist(x, y), matrices.dist(cx, cy), 1e-13)
    close(ball.kobayashi_dist(x, y), matrices.kobayashi_dist(cx, cy), 1e-13)
    close(ball.kobayashi_geodesic(x, y, 0.3), matrices.kobayashi_geodesic(cx, cy, 0.3).squeeze(-1), 1e-13)


def test_disk_with_scale_two_is_the_real_poincare_ball() -> None:
    disk, ball = PoincareDisk(scale=2.0), PoincareBall(c=1.0)
    x, y = disk.random(2, 5, 1, dtype=torch.complex128)
    real_x, real_y = (torch.view_as_real(a.squeeze(-1)) for a in (x, y))
    close(disk.dist(x, y), ball.dist(real_x, real_y))
    close(torch.view_as_real(disk.logmap(x, y).squeeze(-1)), ball.logmap(real_x, real_y))
    case = FAULTS["S27"]
    z, w = (torch.view_as_complex(torch.tensor(case["inputs"][k], dtype=torch.float64)).squeeze(-1) for k in "ZW")
    assert float(disk.dist(z, w)) == pytest.approx(case["expected"], rel=case["tolerance"]["rel"])


def exact_distance(z: Tensor, w: Tensor) -> float:
    with mpmath.workdps(60):
        a, b = ([mpmath.mpc(v.real.item(), v.imag.item()) for v in x] for x in (z, w))
        za, wb = sum(abs(v) ** 2 for v in a), sum(abs(v) ** 2 for v in b)
        product = sum(u * mpmath.conj(v) for u, v in zip(a, b))
        return float(mpmath.acosh(abs(1 - product) / mpmath.sqrt((1 - za) * (1 - wb))))


@pytest.mark.parametrize("margin", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("p", [1, 2, 5])
def test_distance_has_full_relative_accuracy_up_to_the_boundary(p: int, margin: float) -> None:
    """Against sixty digits on the very numbers stored: 1 - |z|^2 is computed without rounding what cancels."""
    generator = torch.Generator().manual_seed(p)
    z, w = torch.randn(2, 20, p, generator=generator, dtype=torch.complex128)
    z, w = (a * (1 - margin) / torch.linalg.vector_norm(a, dim=-1, keepdim=True) for a in (z, w))
    w[10:] = z[10:] * (1 - 1e-7 * margin) + 1e-3 * margin * w[10:]
    w[10:] = w[10:] * ((1 - margin) / torch.linalg.vector_norm(w[10:], dim=-1, keepdim=True))
    exact = torch.tensor([exact_distance(a, b) for a, b in zip(z, w)], dtype=torch.float64)
    assert float(((ComplexBall().dist(z, w) - exact) / exact).abs().max()) <= 1e-13


def test_results_stay_inside_for_huge_steps() -> None:
    for dtype in (torch.complex64, torch.complex128):
        ball = ComplexBall()
        x = ball.random(20, 3, dtype=dtype)
        u = torch.randn(20, 3, dtype=dtype) * torch.logspace(-3, 4, 20)[:, None]
        y = ball.expmap(x, u)
        assert ball.check_point_on_manifold(y)
        leaf = u.clone().requires_grad_()
        ball.dist2(ball.expmap(x, leaf), x).sum().backward()
        assert leaf.grad is not None
        assert torch.isfinite(torch.view_as_real(leaf.grad)).all()


def test_wrong_points_are_named() -> None:
    ball, x = ComplexBall(), ComplexBall().random(4, 2, dtype=torch.complex128)
    y = x.clone()
    y[3] = torch.tensor([0.6, 0.9])
    for call in (lambda: ball.dist(x, y), lambda: ball.logmap(y, x), lambda: ball.mean(y), lambda: ball.center(x, y)):
        with pytest.raises(ValueError, match=r"\[3\].*its norm is 1\.08"):
            call()
    with pytest.raises(TypeError, match="must be complex"):
        ball.dist(x.real, x)
    with pytest.raises(ValueError, match=r"last dimension of size one.*unsqueeze"):
        PoincareDisk().dist(x, x)
