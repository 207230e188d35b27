"""Rotations: the laws of the suite for n = 2, 3 and general n on both sides, and what is theirs alone."""

import json
import math

import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg.orthogonal import expm_skew, logm_rotation, nearest_rotation, skew_part
from manifoldnorm.linalg.rotation3 import (
    quaternion_from_rotation,
    quaternion_from_vector,
    rotation_from_quaternion,
    rotation_from_vector,
    vector_from_quaternion,
    vector_from_rotation,
)
from manifoldnorm.manifolds.rotation_mean import UniquenessWarning
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn import LieBatchNorm, RiemannianBatchNorm
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

DOUBLE = torch.float64
FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_rotation.json").read_text())}


class RotationSuite(ManifoldSuite):
    """Points within a ball of radius one around the identity, where logarithms and means are unique."""

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (*batch, *self.event_shape)
        u = skew_part(torch.randn(*shape, generator=generator, dtype=DOUBLE))
        length = torch.rand(batch, generator=generator, dtype=DOUBLE) / torch.linalg.matrix_norm(u)
        return expm_skew(length[..., None, None] * u)


class TestPlane(RotationSuite):
    manifold = Rotations()
    event_shape = (2, 2)
    second_order_mean = False


class TestSpaceLeft(RotationSuite):
    manifold = Rotations("left")
    event_shape = (3, 3)


class TestSpaceRight(RotationSuite):
    manifold = Rotations("right")
    event_shape = (3, 3)


class TestFourDimensions(RotationSuite):
    manifold = Rotations()
    event_shape = (4, 4)
    second_order_mean = False


class TestFiveDimensionsRight(RotationSuite):
    manifold = Rotations("right")
    event_shape = (5, 5)
    second_order_mean = False


# Conversions, against scipy.


def test_conversions_are_scipys() -> None:
    scipy_rotation = pytest.importorskip("scipy.spatial.transform").Rotation
    theirs = scipy_rotation.random(200, random_state=0)
    matrix = torch.from_numpy(theirs.as_matrix())
    vector = torch.from_numpy(theirs.as_rotvec())
    quaternion = torch.from_numpy(theirs.as_quat(canonical=True))
    for ours, expected in (
        (vector_from_rotation(matrix), vector),
        (quaternion_from_rotation(matrix), quaternion),
        (rotation_from_vector(vector), matrix),
        (rotation_from_quaternion(-3 * quaternion), matrix),
        (quaternion_from_vector(vector), quaternion),
        (vector_from_quaternion(-quaternion), vector),
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.3, 1.0, 3.0])
def test_derivatives_of_the_conversions(angle: float) -> None:
    v = torch.tensor([[2.0, -1.0, 2.0], [0.0, 0.0, 3.0]], dtype=DOUBLE) * angle / 3
    v.requires_grad_()

    def around(w: Tensor) -> Tensor:
        return vector_from_rotation(rotation_from_vector(w))

    torch.testing.assert_close(around(v), v, rtol=1e-14, atol=1e-15)
    for function in (around, rotation_from_vector, quaternion_from_vector):
        assert torch.autograd.gradcheck(function, v)
        assert torch.autograd.gradgradcheck(function, v)


# Fault cases of other libraries.


@pytest.mark.parametrize("name", ["S1532", "S1564", "S16", "S17", "S19"])
def test_logarithm_near_pi(name: str) -> None:
    case = FAULTS[name]
    dtype = getattr(torch, case["dtype"])
    vector = vector_from_rotation(torch.tensor(case["inputs"]["R"], dtype=dtype))
    expected = torch.tensor(case["expected"], dtype=dtype)
    # At pi exactly the vector and its negative are the same rotation; the sign is fixed for the others.
    error = (vector - expected).abs().amax(-1)
    if name not in ("S16", "S17"):
        error = torch.minimum(error, (vector + expected).abs().amax(-1))
    assert float(error.max()) <= case["tolerance"]["abs"]


def test_gradient_of_the_logarithm_at_the_identity() -> None:
    """S18."""
    case = FAULTS["S18"]
    r = torch.tensor(case["inputs"]["R"], dtype=DOUBLE).requires_grad_()
    (vector_from_rotation(r) * torch.tensor(case["inputs"]["c"], dtype=DOUBLE)).sum().backward()
    g = r.grad
    skew = torch.stack((g[2, 1] - g[1, 2], g[0, 2] - g[2, 0], g[1, 0] - g[0, 1]))
    expected = torch.tensor(case["expected"]["skew_part_of_ambient_grad"], dtype=DOUBLE)
    torch.testing.assert_close(skew, expected, rtol=0, atol=case["tolerance"]["abs"])


# The logarithm in any dimension.


def rotation_by(angles: list[float], n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a skew matrix with the given angles in a random basis, and its exponential from cosines and sines."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=DOUBLE))[0]
    skew, turn = torch.zeros(n, n, dtype=DOUBLE), torch.eye(n, dtype=DOUBLE)
    for k, angle in enumerate(angles):
        i, j = 2 * k, 2 * k + 1
        skew[i, j], skew[j, i] = -angle, angle
        turn[i, i] = turn[j, j] = math.cos(angle)
        turn[i, j], turn[j, i] = -math.sin(angle), math.sin(angle)
    return basis @ skew @ basis.mT, basis @ turn @ basis.mT


@pytest.mark.parametrize(
    ("n", "angles", "tolerance"),
    [
        (2, [math.pi - 1e-9], 1e-14),
        (4, [1.0, 2.0], 1e-14),
        (4, [1e-9, 1e-5], 1e-15),
        (4, [1.0, math.pi - 1.0], 1e-14),
        (4, [math.pi / 2, math.pi / 2 - 1e-9], 1e-13),
        (5, [math.pi - 1e-3, 0.3], 1e-13),
        (5, [math.pi - 1e-6, 0.3], 1e-12),
        (5, [math.pi - 1e-8, 1.0], 1e-8),
        (6, [2.0, 2.0, -2.0], 1e-13),
        (6, [math.pi - 0.1, math.pi - 0.2, math.pi - 0.05], 1e-12),
        (9, [0.5, -0.5, 3.0, 1e-4], 1e-13),
    ],
)
def test_logarithm_of_given_angles(n: int, angles: list[float], tolerance: float) -> None:
    skew, rotation = rotation_by(angles, n)
    torch.testing.assert_close(logm_rotation(rotation), skew, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "rotation",
    [
        torch.diag(torch.tensor([-1.0, -1.0])),
        torch.diag(torch.tensor([-1.0, 1.0, -1.0])),
        torch.diag(torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0])),
        torch.eye(4)[[1, 0, 3, 2]],
    ],
    ids=["2", "3", "5", "4"],
)
def test_exactly_at_pi_there_is_a_logarithm_with_finite_gradient(rotation: Tensor) -> None:
    r = rotation.double().requires_grad_()
    log = logm_rotation(r)
    torch.testing.assert_close(expm_skew(log), r, rtol=0, atol=1e-8)
    angle = torch.linalg.eigvals(log).abs().max()
    torch.testing.assert_close(angle, torch.tensor(math.pi, dtype=DOUBLE), rtol=1e-8, atol=0)
    log.square().sum().backward()
    assert torch.isfinite(r.grad).all()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_nearest_rotation_of_a_matrix_slightly_off(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    r = Rotations().random(5, n, n, generator=generator, dtype=DOUBLE)
    off = r + 1e-5 * torch.randn(5, n, n, generator=generator, dtype=DOUBLE)
    torch.testing.assert_close(logm_rotation(off), logm_rotation(nearest_rotation(off)), rtol=0, atol=1e-8)
    x = torch.randn(4, n, n, generator=generator, dtype=DOUBLE)
    nearest = nearest_rotation(x)
    assert Rotations().check_point_on_manifold(nearest)
    others = Rotations().random(200, 4, n, n, generator=generator, dtype=DOUBLE)
    distance = torch.linalg.matrix_norm(x - nearest)
    assert (torch.linalg.matrix_norm(x - others) >= distance).all()
    assert torch.autograd.gradcheck(nearest_rotation, x.requires_grad_())


@pytest.mark.parametrize("n", [2, 3, 4])
def test_what_is_not_a_rotation_gives_nan_alone(n: int) -> None:
    reflection = torch.eye(n, dtype=DOUBLE)
    reflection[0, 0] = -1
    batch = torch.stack((torch.eye(n, dtype=DOUBLE), reflection, 2 * torch.eye(n, dtype=DOUBLE)))
    log = logm_rotation(batch)
    assert torch.equal(log[0], torch.zeros(n, n, dtype=DOUBLE))
    assert torch.isnan(log[1:]).flatten(1).any(-1).all()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="side must be"):
        Rotations("middle")
    with pytest.raises(ValueError, match="n >= 2"):
        LieBatchNorm(Rotations(), (1, 1))
    x = Rotations().random(4, 3, 3, dtype=DOUBLE)
    x[2] = -x[2]
    layer = LieBatchNorm(Rotations(), (3, 3), dtype=DOUBLE, mean_steps=1)
    with pytest.raises(ValueError, match=r"input\[2\].*determinant"):
        layer(x)
    x[2] = 0.5 * x[2]
    with pytest.raises(ValueError, match=r"input\[2\].*orthogonal"):
        layer(x)


# Means.


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_spread_mean_warns_and_a_narrow_one_does_not(n: int) -> None:
    angles = torch.tensor([0.0, 0.1, -0.1], dtype=DOUBLE)
    axis = torch.zeros(n, n, dtype=DOUBLE)
    axis[1, 0], axis[0, 1] = 1.0, -1.0
    narrow = expm_skew(angles[:, None, None] * axis)
    torch.testing.assert_close(Rotations().mean(narrow), torch.eye(n, dtype=DOUBLE), rtol=0, atol=1e-13)
    with pytest.warns(UniquenessWarning, match="may be one of several"):
        Rotations().mean(expm_skew(18 * angles[:, None, None] * axis))


def test_newton_mean_is_the_karcher_mean() -> None:
    """A fixed number of Newton steps equals the converged mean, whose residual vanishes, for channels too."""
    x = TestSpaceLeft().points(20, 3, seed=5)
    mean = Rotations().mean(x)
    residual = logm_rotation(mean.mT @ x).mean(0)
    assert float(residual.abs().max()) < 1e-15
    torch.testing.assert_close(Rotations().mean(x, steps=3), mean, rtol=0, atol=1e-14)


def test_identical_rotations_have_finite_gradients() -> None:
    """Every centred rotation is then the identity, and so is what the mean starts from."""
    x = rotation_from_vector(torch.tensor([[0.3, -1.0, 0.5]], dtype=DOUBLE)).expand(6, 3, 3).clone().requires_grad_()
    layer = RiemannianBatchNorm(Rotations(), (3, 3), dtype=DOUBLE)
    y = layer(x)
    (y * torch.arange(9.0, dtype=DOUBLE).reshape(3, 3)).sum().backward()
    assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(y, torch.eye(3, dtype=DOUBLE).expand(6, 3, 3), rtol=0, atol=1e-10)


def test_autocast_leaves_rotations_alone() -> None:
    x = TestSpaceLeft().points(4).float()
    layer = LieBatchNorm(Rotations(), (3, 3))
    expected = logm_rotation(x), layer(x)
    layer.reset_running_stats()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = logm_rotation(x), layer(x)
    for result, value in zip(results, expected):
        assert torch.equal(result, value)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_is_nan_alone(n: int, bad: float) -> None:
    """A decomposition would refuse the whole batch for a NaN, and make a rotation of an infinity."""
    x = Rotations().random(3, n, n, dtype=torch.float64)
    x[1, 0, 1] = bad
    x.requires_grad_()
    for function in (Rotations().projx, lambda r: Rotations().mean(torch.stack([r, r]))):
        y = function(x)
        assert y[1].isnan().all()
        assert y[::2].isfinite().all()
        (gradient,) = torch.autograd.grad(y[::2].square().sum() + y[::2].sum(), x)
        assert gradient[::2].isfinite().all()
