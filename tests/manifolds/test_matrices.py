"""Weight manifolds: the suite, projections against their definitions, ties, dual directions, agreement on vectors."""

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds.frames import Grassmann, Stiefel
from manifoldnorm.manifolds.matrices import MatrixManifold
from manifoldnorm.manifolds.matrix_spheres import FrobeniusSphere, Oblique
from manifoldnorm.manifolds.spectral_sphere import SpectralSphere
from manifoldnorm.testing import ManifoldSuite
from manifoldnorm.testing.suite_samples import Binary

EMBEDDED = [
    FrobeniusSphere(1.7),
    Oblique(0.6),
    Oblique(1.3, dim=-2),
    SpectralSphere(2.0),
    Stiefel(1.4),
    Stiefel(1.4, retraction="qr"),
    Grassmann(0.8),
]
SHAPES = [(6, 4), (4, 6), (5, 5)]
CASES = [(m, s) for m in EMBEDDED for s in SHAPES if not (isinstance(m, Grassmann) and s == (5, 5))]
NO_LOGARITHM = frozenset({"logmap", "dist", "dist2", "mean", "center", "uncenter", "transp"})


class WithoutLogarithm(ManifoldSuite):
    """The suite for manifolds without a logarithm, and hence without maps of pairs of points."""

    def _unary_of_pairs(self) -> dict[str, Binary]:
        return {}


class NearOrigin(ManifoldSuite):
    """The suite for compact manifolds, where widely spread points have no unique mean."""

    manifold: ClassVar[MatrixManifold]

    def points(self, *batch: int, seed: int = 0) -> Tensor:
        """Draw points within a ball where means are unique."""
        origin = self.origin(*batch)
        noise = torch.randn(origin.shape, generator=torch.Generator().manual_seed(seed), dtype=self.dtype)
        return self.manifold.expmap(origin, 0.2 * self.manifold.radius * self.manifold.proju(origin, noise))


class TestFrobeniusSphere(NearOrigin):
    manifold = FrobeniusSphere(1.5)
    event_shape = (2, 3)
    second_order_mean = False


class TestObliqueRows(NearOrigin):
    manifold = Oblique(0.8)
    event_shape = (2, 3)
    second_order_mean = False


class TestObliqueColumns(NearOrigin):
    manifold = Oblique(dim=-2)
    event_shape = (3, 2)
    second_order_mean = False


class TestSpectralSphere(WithoutLogarithm):
    manifold = SpectralSphere(2.0)
    event_shape = (4, 3)
    unsupported = NO_LOGARITHM | {"expmap"}


class TestStiefel(WithoutLogarithm):
    manifold = Stiefel(1.5)
    event_shape = (5, 3)
    unsupported = NO_LOGARITHM


class TestGrassmann(NearOrigin):
    manifold = Grassmann(1.5)
    event_shape = (4, 2)
    unsupported = frozenset({"center", "uncenter"})

    def _close(self, a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
        """Compare subspaces by their projections, and everything else as it is."""
        points = a.shape[-2:] == b.shape[-2:] == self.event_shape and a.numel() > 0
        if points and all(self.manifold.check_point_on_manifold(m.to(self.dtype), atol=1e-3) for m in (a, b)):
            a, b = a @ a.mT, b @ b.mT
        super()._close(a, b, tolerance)


def drawn(manifold: MatrixManifold, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    x = manifold.random(*shape, dtype=torch.float64)
    return x, manifold.random_tangent(x)


@pytest.mark.parametrize(("manifold", "shape"), CASES, ids=str)
def test_projection_is_orthogonal(manifold: MatrixManifold, shape: tuple[int, int]) -> None:
    """Idempotent, self-adjoint, and moving along it changes the constraint to second order only."""
    x, u = drawn(manifold, (3, *shape))
    a, b = torch.randn(2, 3, *shape, dtype=torch.float64)
    torch.testing.assert_close(manifold.proju(x, manifold.proju(x, a)), manifold.proju(x, a), rtol=1e-12, atol=1e-12)
    left, right = (manifold.proju(x, a) * b).sum(), (a * manifold.proju(x, b)).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    ratio = manifold.constraint_error(x + 1e-4 * u) / manifold.constraint_error(x + 1e-3 * u)
    assert (ratio < 0.02).all(), ratio


@pytest.mark.parametrize(("manifold", "shape"), CASES, ids=str)
def test_retraction_has_the_right_velocity(manifold: MatrixManifold, shape: tuple[int, int]) -> None:
    x, u = drawn(manifold, (3, *shape))
    torch.testing.assert_close(manifold.retr(x, torch.zeros_like(u)), x, rtol=1e-12, atol=1e-12)
    deviations = [float((manifold.retr(x, t * u) - x - t * u).norm()) for t in (1e-3, 1e-4)]
    assert deviations[1] < 0.02 * deviations[0]
    assert float(manifold.constraint_error(manifold.retr(x, u)).max()) < 1e-14 * 20


@pytest.mark.parametrize("manifold", [Stiefel(1.4), Grassmann(0.8)], ids=repr)
@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("bound", [0.03, 0.3, 0.55, 0.9])
def test_bounded_retraction_equals_the_polar_one(
    manifold: MatrixManifold, shape: tuple[int, int], bound: float
) -> None:
    x, u = drawn(manifold, (3, *shape))
    u = u * (bound * manifold.radius / torch.linalg.matrix_norm(u, 2))[:, None, None]
    fast, _ = manifold.retract_along(x, u, 1.0, bound=bound)
    torch.testing.assert_close(fast, manifold.retr(x, u), rtol=1e-12, atol=1e-12)


def test_bounded_retraction_recovers_from_a_broken_bound() -> None:
    """Weights far off the manifold come back in some steps instead of blowing up."""
    manifold = Stiefel()
    x = 40 * torch.randn(20, 12, dtype=torch.float64)
    for _ in range(80):
        x, _ = manifold.retract_along(x, torch.zeros_like(x), 1.0, bound=0.03)
    assert float(manifold.constraint_error(x)) < 1e-12


@pytest.mark.parametrize(("manifold", "shape"), CASES, ids=str)
def test_retraction_along_a_direction_is_the_retraction(manifold: MatrixManifold, shape: tuple[int, int]) -> None:
    x, u = drawn(manifold, (3, *shape))
    length = torch.tensor([0.1, -0.2, 0.0], dtype=torch.float64)[:, None, None]
    along, _ = manifold.retract_along(x, u, length)
    torch.testing.assert_close(along, manifold.retr(x, length * u), rtol=1e-12, atol=1e-12)
    a = torch.randn_like(u)
    for frame in (None, manifold.normal_frame(x)):
        along, _ = manifold.retract_along(x, a, length, project=True, frame=frame)
        torch.testing.assert_close(along, manifold.retr(x, length * manifold.proju(x, a)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("manifold", [Stiefel(1.4), Grassmann(0.8)], ids=repr)
@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (200, 140)])
def test_rounded_projection(manifold: Stiefel | Grassmann, shape: tuple[int, int]) -> None:
    """Its error lies below the bound that comes with it, also where a large multiple of the point hides the tangent."""
    x = manifold.random(2, *shape)
    ambient = torch.randn(2, *shape)
    exact = manifold.proju(x.double(), ambient.double())
    for multiple in (0.0, 1000.0):
        tangent, error = manifold.project_rounded(x, ambient + multiple * x)
        assert tangent.dtype == torch.bfloat16
        off = torch.linalg.vector_norm(tangent.double() - exact, dim=(-2, -1), keepdim=True)
        assert (off < error).all()
        assert (error < 0.05 * torch.linalg.vector_norm(exact, dim=(-2, -1), keepdim=True)).all()
    normal = ambient - manifold.proju(x, ambient)
    tangent, error = manifold.project_rounded(x, normal)
    assert (torch.linalg.vector_norm(tangent, dim=(-2, -1), keepdim=True) < error).all()


def test_radius_of_each_matrix() -> None:
    radius = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    for kind in (FrobeniusSphere, SpectralSphere, Stiefel, Grassmann, Oblique):
        x = kind(radius).projx(torch.randn(3, 4, 3, dtype=torch.float64))
        for i in range(3):
            assert kind(float(radius[i])).check_point_on_manifold(x[i])
        torch.testing.assert_close(kind(radius).radius_of(x), radius)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1)])
def test_all_agree_on_vectors(shape: tuple[int, int]) -> None:
    """On 1 x n and n x 1 matrices the Frobenius sphere, the spectral sphere and the Stiefel manifold are one sphere."""
    x = FrobeniusSphere(2.0).random(*shape, dtype=torch.float64)
    u, a = FrobeniusSphere(2.0).random_tangent(x), torch.randn(shape, dtype=torch.float64)
    for other in (SpectralSphere(2.0), Stiefel(2.0)):
        torch.testing.assert_close(other.proju(x, a), FrobeniusSphere(2.0).proju(x, a), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.retr(x, u), FrobeniusSphere(2.0).retr(x, u), rtol=1e-12, atol=1e-12)


def test_spectral_sphere_with_tied_singular_values() -> None:
    """All tied: the tangent space of the Stiefel manifold. Two tied: independent of the basis of the tied space."""
    x = Stiefel(2.0).random(5, 3, dtype=torch.float64)
    a = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(SpectralSphere(2.0).proju(x, a), Stiefel(2.0).proju(x, a), rtol=1e-10, atol=1e-10)
    left, _, right = torch.linalg.svd(torch.randn(5, 3, dtype=torch.float64), full_matrices=False)
    values = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))[0]
    turned = torch.block_diag(rotation, torch.ones(1, 1, dtype=torch.float64))
    first = SpectralSphere(2.0).proju((left * values) @ right, a)
    second = SpectralSphere(2.0).proju((left @ turned * values) @ (turned.mT @ right), a)
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
    block = (left.mT @ first @ right.mT)[:2, :2]
    assert float((block + block.mT).abs().max()) < 1e-12


def test_spectral_projection_refuses_a_missing_gradient() -> None:
    x = SpectralSphere().random(3, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="detach"):
        SpectralSphere().proju(x, torch.ones(3, 3))


@pytest.mark.parametrize(
    "manifold", [FrobeniusSphere(1.5), SpectralSphere(1.5), Stiefel(1.5), Grassmann(1.5)], ids=repr
)
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
def test_dual_direction_is_feasible_and_beats_the_single_loop(manifold: MatrixManifold, shape: tuple[int, int]) -> None:
    if isinstance(manifold, Grassmann) and shape == (6, 6):
        pytest.skip("the Grassmann manifold of the whole space is a point")
    x = manifold.random(*shape, dtype=torch.float64)
    g = torch.randn(shape, dtype=torch.float64)
    best = manifold.dual_direction(x, g)
    size = float(torch.linalg.matrix_norm(best, 2))
    assert size <= 1 + (1e-2 if isinstance(manifold, Stiefel) else 1e-9)
    torch.testing.assert_close(manifold.proju(x, best), best, rtol=1e-7, atol=1e-7)
    left, _, right = torch.linalg.svd(manifold.proju(x, g), full_matrices=False)
    single = manifold.proju(x, left @ right)
    ratio = float((g * single).sum() / torch.linalg.matrix_norm(single, 2) / ((g * best).sum() / size))
    assert 0.85 < ratio <= 1 + 1e-3, ratio


def test_strong_duality_on_a_line() -> None:
    """The value of the direction equals the minimum of the dual, |g + l n|_*, found by brute force."""
    manifold = FrobeniusSphere(1.0)
    x, g = manifold.random(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    value = (g * manifold.dual_direction(x, g)).sum()
    grid = torch.linspace(-10, 10, 200001, dtype=torch.float64)
    dual = torch.linalg.svdvals(g + grid[:, None, None] * x).sum(-1).min()
    torch.testing.assert_close(value, dual, rtol=1e-7, atol=1e-7)


def test_dual_direction_where_the_slope_jumps() -> None:
    """G = 0 in all but the normal direction: the maximiser is a mixture of the two sides of the jump."""
    x = torch.eye(3, dtype=torch.float64) / math.sqrt(3)
    best = FrobeniusSphere().dual_direction(x, 2 * x)
    assert float((x * best).sum().abs()) < 1e-8
    assert float(torch.linalg.matrix_norm(best, 2)) <= 1 + 1e-9


def test_square_stiefel_closed_form_equals_project_msign_project() -> None:
    x, g = Stiefel().random(6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    left, _, right = torch.linalg.svd(Stiefel().proju(x, g))
    single = Stiefel().proju(x, left @ right)
    torch.testing.assert_close((g * single).sum(), (g * Stiefel().dual_direction(x, g)).sum(), rtol=1e-10, atol=1e-10)


def test_grassmann_ignores_the_basis() -> None:
    m = Grassmann(1.3)
    x, y = m.random(6, 2, dtype=torch.float64), m.random(6, 2, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))[0]
    torch.testing.assert_close(m.dist(x, y @ rotation), m.dist(x, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(m.dist(x, x @ rotation), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-7)
    close = m.expmap(x, 1e-9 * m.random_tangent(x))
    assert 0 < float(m.dist(x, close)) < 1e-8


def test_grassmann_principal_angles() -> None:
    """The distance is the norm of the principal angles, arccos of the singular values of x^T y."""
    m = Grassmann()
    x, y = m.random(7, 3, dtype=torch.float64), m.random(7, 3, dtype=torch.float64)
    angles = torch.acos(torch.linalg.svdvals(x.mT @ y))
    torch.testing.assert_close(m.dist(x, y), angles.norm(), rtol=1e-12, atol=1e-12)


def test_stiefel_geodesic_is_a_geodesic() -> None:
    """Its acceleration is normal: the projected second difference vanishes, and the speed is constant."""
    m = Stiefel(1.5)
    x, u = drawn(m, (6, 3))
    h = 1e-3
    before, here, after = (m.expmap(x, t * u) for t in (0.7 - h, 0.7, 0.7 + h))
    acceleration = (before - 2 * here + after) / h**2
    assert float(m.proju(here, acceleration).norm()) < 1e-5 * float(acceleration.norm())
    torch.testing.assert_close(((after - before) / (2 * h)).norm(), u.norm(), rtol=1e-5, atol=1e-5)


def test_opposite_points_have_a_logarithm_of_length_pi() -> None:
    x = FrobeniusSphere(2.0).random(3, 3, dtype=torch.float64)
    u = FrobeniusSphere(2.0).logmap(x, -x)
    torch.testing.assert_close(u.norm(), torch.tensor(2 * math.pi, dtype=torch.float64))
    torch.testing.assert_close(FrobeniusSphere(2.0).expmap(x, u), -x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_bad_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="radius must be positive"):
        FrobeniusSphere(radius)


def test_bad_settings_and_shapes() -> None:
    with pytest.raises(ValueError, match="dim must be -1"):
        Oblique(dim=0)
    with pytest.raises(ValueError, match="retraction must be one of polar, qr"):
        Stiefel(retraction="cayley")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        Stiefel().random(3)
    assert not FrobeniusSphere().check_point_on_manifold(torch.zeros(2, 2))


def test_rank_deficient_matrices_project_onto_the_manifold() -> None:
    """The polar factor of a rank-deficient matrix is completed, so that projx always returns a point."""
    low = torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 4, dtype=torch.float64)
    for manifold in (Stiefel(), Grassmann()):
        assert manifold.check_point_on_manifold(manifold.projx(low))
