"""Hermitian positive definite matrices: the suite, golden values, and agreement with the real geometry."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm import SPDAffineInvariant
from manifoldnorm.linalg import logm
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_complex.json").read_text())}


class TestHPD(ManifoldSuite):
    manifold = HPD()
    event_shape = (2, 2)
    dtype = torch.complex128
    second_order_mean = False


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_golden(n: int) -> None:
    m = HPD()
    with np.load(GOLDEN / "siegel_ball_hpd.npz") as file:
        a, b, dist, log, mean = (torch.from_numpy(file[f"hpd{n}_{key}"]) for key in ("A", "B", "dist", "log", "mean"))
    close(m.dist(a, b), dist)
    close(m.dist(b, a), dist)
    close(m.logmap(a, b), log)
    close(m.expmap(a, log), b)
    close(m.mean(a), mean)
    result = m.mean(a)
    assert torch.equal(result, result.mH)


def test_real_matrices_agree_with_the_real_geometry() -> None:
    m, real = HPD(), SPDAffineInvariant()
    x, y = real.random(2, 6, 3, 3, dtype=torch.float64)
    close(m.dist(x.to(torch.complex128), y.to(torch.complex128)), real.dist(x, y), 1e-13)
    close(m.mean(x.to(torch.complex128)).real, real.mean(x), 1e-13)


def test_distance_is_invariant_under_congruence() -> None:
    m, x, y = HPD(), *HPD().random(2, 5, 3, 3, dtype=torch.complex128)
    g = torch.randn(3, 3, dtype=torch.complex128)
    close(m.dist(g @ x @ g.mH, g @ y @ g.mH), m.dist(x, y), 1e-10)


def test_mean_of_widely_spread_points() -> None:
    """Condition numbers up to 1e8, where unit steps oscillate."""
    m = HPD()
    x = m.random(30, 3, 3, dtype=torch.complex128)
    wide = m.geodesic(m.origin(3, 3, dtype=x.dtype), x, 8.0)
    mean = m.mean(wide)
    assert float(m.norm(mean, m.logmap(mean, wide).mean(0))) < 1e-9


def test_published_gradients() -> None:
    """At the identity (all eigenvalues equal), and PyTorch's convention for |z|^2."""
    case = FAULTS["S30"]
    g = torch.view_as_complex(torch.tensor(case["inputs"]["G"], dtype=torch.float64))
    a = torch.eye(2, dtype=torch.complex128, requires_grad=True)
    (g.conj() * logm(a)).sum().real.backward()
    assert a.grad is not None
    close(a.grad, torch.view_as_complex(torch.tensor(case["expected"], dtype=torch.float64)), 1e-9)
    z = torch.tensor(3 + 4j, dtype=torch.complex128, requires_grad=True)
    z.abs().square().backward()
    assert z.grad is not None
    assert complex(z.grad) == pytest.approx(complex(*FAULTS["S29"]["expected"]), abs=1e-12)


def test_wrong_points_are_named() -> None:
    m, x = HPD(), HPD().random(4, 2, 2, dtype=torch.complex128)
    y = x.clone()
    y[1] = torch.diag(torch.tensor([2.0, -0.5]))
    for call in (lambda: m.dist(x, y), lambda: m.logmap(y, x), lambda: m.mean(y), lambda: m.center(x, y)):
        with pytest.raises(ValueError, match=r"\[1\].*smallest eigenvalue is -0\.5"):
            call()
    y = x.clone()
    y[2, 0, 1] += 0.25
    for call in (lambda: m.dist(x, y), lambda: m.mean(y), lambda: m.expmap(y, x)):
        with pytest.raises(ValueError, match=r"\[2\].*Hermitian.*0\.25"):
            call()
    with pytest.raises(TypeError, match=r"must be complex.*torch.float64"):
        m.dist(x.real, x)
    with pytest.raises(ValueError, match="square"):
        m.mean(torch.zeros(4, 2, 3, dtype=torch.complex128))
