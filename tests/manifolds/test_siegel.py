"""Matrix ball and Siegel disk: the suite, golden values, the boundary, the mean, and what is true of them alone."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm import Product
from manifoldnorm.manifolds import matrix_ball_maps as maps
from manifoldnorm.manifolds.complex_ball import ComplexBall, PoincareDisk
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall, SiegelDisk
from manifoldnorm.nn import RiemannianBatchNorm
from manifoldnorm.testing import ManifoldSuite
from tests.conftest import GOLDEN

FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_complex.json").read_text())}
KINDS = {"sym": SiegelDisk, "gen": MatrixBall}


class TestMatrixBall(ManifoldSuite):
    manifold = MatrixBall()
    event_shape = (1, 2)
    dtype = torch.complex128
    retraction_order = 2
    second_order_mean = False


class TestTallMatrixBall(ManifoldSuite):
    manifold = MatrixBall(scale=2.0)
    event_shape = (2, 1)
    dtype = torch.complex128
    retraction_order = 2
    second_order_mean = False


class TestSiegelDisk(ManifoldSuite):
    manifold = SiegelDisk()
    event_shape = (2, 2)
    dtype = torch.complex128
    retraction_order = 2
    second_order_mean = False


class TestSiegelDiskOfOne(ManifoldSuite):
    manifold = SiegelDisk(scale=2.0)
    event_shape = (1, 1)
    dtype = torch.complex128
    retraction_order = 2
    second_order_mean = False


class TestKaehlerProduct(ManifoldSuite):
    """The manifold of order-two autoregressive models of one channel."""

    manifold = Product((HPD(), (1, 1)), (MatrixBall(), (1, 1)), weights=(2.0, 1.0))
    event_shape = (2,)
    dtype = torch.complex128
    second_order_mean = False


def golden(kind: str, n: int) -> tuple[MatrixBall, dict[str, Tensor]]:
    with np.load(GOLDEN / f"siegel_{kind}_n{n}.npz") as file:
        return KINDS[kind](), {key: torch.from_numpy(np.asarray(file[key])) for key in file}


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def complex_array(values: list) -> Tensor:
    return torch.view_as_complex(torch.tensor(values, dtype=torch.float64))


def symmetric(v: Tensor) -> Tensor:
    return 0.5 * (v + v.mT)


def spread_points(disk: SiegelDisk, count: int, n: int, spread: float) -> Tensor:
    """Draw points whose largest hyperbolic angle from their off-centre middle is `spread`."""
    generator = torch.Generator().manual_seed(0)
    v = symmetric(torch.randn(count, n, n, generator=generator, dtype=torch.complex128))
    c = symmetric(torch.randn(n, n, generator=generator, dtype=torch.complex128))
    v = v * spread / torch.linalg.matrix_norm(v, ord=2).max()
    c = c / torch.linalg.matrix_norm(c, ord=2)
    zero = torch.zeros_like(c)
    return disk.translate(disk.expmap(zero, v), -disk.expmap(zero, c))


# Golden values.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_golden_maps(kind: str, n: int) -> None:
    m, g = golden(kind, n)
    z, w, v = g["Z"], g["W"], g["V"]
    zero = torch.zeros_like(z)
    close(m.translate(z, w), g["phi_W_Z"])
    close(m.translate(z, -w), g["phi_mW_Z"])
    close(m.expmap(w, v), g["exp_W_V"])
    close(m.logmap(w, z), g["log_W_Z"])
    close(m.expmap(zero, v), g["exp0_V"])
    close(m.logmap(zero, z), g["log0_Z"])
    close(m.geodesic(w, z, 0.3), g["geod_03"])
    close(m.inner(w, v), g["inner_W_VV"])
    close(m.inner(w, v, m.logmap(w, z)), g["inner_W_V_log"])
    if isinstance(m, SiegelDisk):
        close(m.to_upper_half_space(z), g["cayley_Z"])
        close(m.from_upper_half_space(g["cayley_Z"]), z)
        close(maps.translate(z, w, maps.cholesky_factors(w)), g["phi_chol_W_Z"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_golden_distances_in_both_scales(kind: str, n: int) -> None:
    m, g = golden(kind, n)
    z, w = g["Z"], g["W"]
    close(m.dist(z, w), g["dist_c1"])
    close(type(m)(scale=2.0).dist(z, w), g["dist_c2"])
    close(m.angles(z, w), g["theta"])
    close(m.kobayashi_dist(z, w), g["kobayashi"])
    close(2 * m.angles(z, w).sum(-1), g["finsler1_c2"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_golden_statistics_and_batch_norm(kind: str, n: int) -> None:
    m, g = golden(kind, n)
    z, b = g["Z"], g["B"]
    mean = m.mean(z)
    close(mean, g["karcher"])
    close(m.variance(z), g["var_c1"])
    close(m.translate(z, mean), g["bn_centered"])
    close(m.geodesic(b, mean, 0.1), g["runmean_01"])
    layer = RiemannianBatchNorm(m, (n, n), eps=float(g["eps"]), dtype=z.dtype)
    layer.set_bias_point(b)
    with torch.no_grad():
        layer.weight.fill_(float(g["gamma"]))
    close(layer(z), g["bn_out_c1"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_golden_gradients(kind: str, n: int) -> None:
    """PyTorch's gradient is dL/dRe + i dL/dIm; in both arguments of the distance."""
    m, g = golden(kind, n)
    for swap in (False, True):
        w = g["W"].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(m.dist2(*((g["Z"], w) if swap else (w, g["Z"]))).sum(), w)
        close(symmetric(gradient) if isinstance(m, SiegelDisk) else gradient, g["egrad_d2"])
        close(m.egrad2rgrad(g["W"], gradient), g["rgrad_d2"])
    double = type(m)(scale=2.0)
    w = g["W"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(double.dist2(w, g["Z"]).sum(), w)
    close(double.egrad2rgrad(g["W"], gradient), g["rgrad_d2"])


@pytest.mark.parametrize("name", ["S27", "S28"])
def test_published_faults(name: str) -> None:
    case = FAULTS[name]
    z, w = (complex_array(case["inputs"][key]) for key in "ZW")
    z, w = (z, w) if z.ndim == 2 else (z[None], w[None])
    assert float(SiegelDisk(scale=2.0).dist(z, w)) == pytest.approx(case["expected"], rel=case["tolerance"]["rel"])


# The boundary.


@pytest.mark.parametrize(
    ("margin", "distance", "logarithm"), [(2, 1e-14, 4e-14), (4, 1e-12, 4e-12), (6, 1e-11, 7e-10), (8, 1e-9, 1e-8)]
)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_distance_and_logarithm_near_the_boundary(n: int, margin: int, distance: float, logarithm: float) -> None:
    """At 1e-margin from the boundary, against forty-digit references."""
    with np.load(GOLDEN / "siegel_boundary.npz") as file:
        z, w, d, log = (torch.from_numpy(file[f"n{n}_m{margin}_{key}"]) for key in ("Z", "W", "dist_c1", "log_W_Z"))
    for m in (SiegelDisk(), MatrixBall()):
        assert float(((m.dist(z, w) - d) / d).abs().max()) <= distance
        size = log.abs().flatten(1).amax(1)
        assert float(((m.logmap(w, z) - log).abs().flatten(1).amax(1) / size).max()) <= logarithm


@pytest.mark.parametrize("n", [1, 2, 4])
def test_single_precision_distance_near_the_boundary(n: int) -> None:
    """complex64 points 1e-3 from the boundary against the double-precision distance of the same points."""
    generator = torch.Generator().manual_seed(n)
    z, w = (symmetric(torch.randn(32, n, n, generator=generator, dtype=torch.complex64)) for _ in range(2))
    z, w = (a * (1 - 1e-3) / torch.linalg.matrix_norm(a, ord=2, keepdim=True) for a in (z, w))
    single = SiegelDisk().dist(z, w)
    exact = SiegelDisk().dist(z.to(torch.complex128), w.to(torch.complex128))
    assert single.dtype == torch.float32
    assert float(((single.double() - exact) / exact).abs().max()) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_results_stay_inside_and_finite_for_huge_steps(dtype: torch.dtype) -> None:
    """Whatever the tangent vector, exponential and retraction return points that the distance accepts."""
    for m, shape in ((MatrixBall(), (2, 3)), (SiegelDisk(), (3, 3))):
        x = m.random(20, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
        u = m.random_tangent(x, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 20)[:, None, None]
        for y in (m.expmap(x, u), m.retr(x, u), m.uncenter(u, x)):
            assert m.check_point_on_manifold(y)
            leaf = y.clone().requires_grad_()
            m.dist2(leaf, x).sum().backward()
            assert leaf.grad is not None
            assert torch.isfinite(torch.view_as_real(leaf.grad)).all()
            assert torch.isfinite(torch.view_as_real(m.logmap(x, y))).all()


def test_small_distances_keep_their_digits() -> None:
    m, x = SiegelDisk(), SiegelDisk().random(6, 3, 3, dtype=torch.complex128)
    u = m.random_tangent(x)
    u = u / m.norm(x, u)[:, None, None]
    for size in (1e-6, 1e-9):
        assert float((m.dist(x, x + size * u) / size - 1).abs().max()) <= 20 * size + 1e-5 * (size < 1e-8)


def test_projection_keeps_a_margin() -> None:
    m = MatrixBall()
    x = 3 * torch.randn(10, 2, 3, dtype=torch.complex128)
    y = m.projx(x)
    assert float(maps.largest_singular_value(y).max()) == pytest.approx(1 - m.projection_margin(x.dtype), rel=1e-12)
    inside = m.random(10, 2, 3, dtype=torch.complex128).requires_grad_()
    m.projx(inside).real.sum().backward()
    close(inside.grad, torch.ones_like(inside), 1e-12)


# Geometry.


def test_cayley_map_is_an_isometry_onto_the_affine_invariant_metric() -> None:
    """With scale 2, for points iY; and it is inverse to its inverse."""
    m = SiegelDisk(scale=2.0)
    y = HPD().random(2, 3, 3, dtype=torch.complex128).real.to(torch.complex128)
    z = m.from_upper_half_space(1j * y)
    close(m.dist(z[0], z[1]), HPD().dist(y[0], y[1]))
    close(m.to_upper_half_space(z), 1j * y)


def test_embedding_of_rectangular_matrices_is_isometric() -> None:
    """Z -> [[0, Z], [Z^T, 0]] multiplies distances by sqrt 2."""

    def embed(z: Tensor) -> Tensor:
        p, q = z.shape[-2:]
        zero = z.new_zeros
        return torch.cat([torch.cat([zero(p, p), z], 1), torch.cat([z.mT, zero(q, q)], 1)])

    z, w = MatrixBall().random(2, 2, 3, dtype=torch.complex128)
    close(SiegelDisk().dist(embed(z), embed(w)), math.sqrt(2) * MatrixBall().dist(z, w), 1e-13)


def test_kobayashi_geodesic_has_constant_speed_in_its_distance() -> None:
    m, t = SiegelDisk(), torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
    x, y = (m.random(1, 3, 3, generator=torch.Generator().manual_seed(s), dtype=torch.complex128) for s in (0, 1))
    x, y = x.expand(4, 3, 3), y.expand(4, 3, 3)
    points = m.kobayashi_geodesic(x, y, t)
    close(points[0], x[0], 1e-13)
    close(points[3], y[0], 1e-13)
    close(m.kobayashi_dist(x, points), t * m.kobayashi_dist(x, y), 1e-12)
    close(m.kobayashi_dist(points[1], points[2]), 0.5 * m.kobayashi_dist(x[0], y[0]), 1e-12)
    difference = (points[1] - m.geodesic(x[0], y[0], 0.2)).abs().max()
    assert float(difference) > 1e-3
    close(m.kobayashi_geodesic(x, x, t), x, 1e-14)
    one = SiegelDisk().random(2, 1, 1, dtype=torch.complex128)
    close(m.kobayashi_geodesic(one[0], one[1], 0.3), m.geodesic(one[0], one[1], 0.3), 1e-13)


def test_equivariance_under_isometries() -> None:
    """Unitary congruences and transvections commute with the logarithm and keep the angles."""
    m = MatrixBall()
    x, y, w = m.random(3, 2, 3, dtype=torch.complex128)
    u, v = (torch.linalg.qr(torch.randn(k, k, dtype=torch.complex128))[0] for k in (2, 3))
    close(m.logmap(u @ x @ v, u @ y @ v), u @ m.logmap(x, y) @ v, 1e-13)
    close(m.angles(m.translate(x, w), m.translate(y, w)), m.angles(x, y), 1e-13)
    layer = RiemannianBatchNorm(m, (2, 3), dtype=torch.complex128)
    points = m.random(9, 2, 3, dtype=torch.complex128)
    spectra = [maps.svdvals(layer(p)) for p in (points, m.translate(points, w))]
    close(*spectra, 1e-12)


DEGENERATE = {
    "zero": torch.zeros(2, 2, dtype=torch.complex128),
    "rank one": torch.tensor([[0.36, 0.48j], [0.48j, -0.64]], dtype=torch.complex128) * 0.5,
    "unitary multiple": torch.tensor([[0.6, 0.8j], [0.8j, 0.6]], dtype=torch.complex128) * 0.7,
}


@pytest.mark.parametrize("at", DEGENERATE)
@pytest.mark.parametrize("towards", DEGENERATE)
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_at_degenerate_spectra(kind: str, at: str, towards: str) -> None:
    """Where stock decompositions give NaN or a wrong gradient: zero, rank one and multiples of unitary matrices."""
    m = KINDS[kind]()
    restore = symmetric if kind == "sym" else (lambda a: a)
    w, z = DEGENERATE[at].clone().requires_grad_(), DEGENERATE[towards].clone().requires_grad_()

    def everything(a: Tensor, b: Tensor) -> Tensor:
        base, other = restore(a), restore(b)
        matrices = m.logmap(base, other), m.expmap(base, other), m.center(other, base), m.uncenter(other, base)
        return torch.cat([*(t.flatten() for t in matrices), m.dist2(base, other).to(base.dtype).flatten()])

    assert torch.autograd.gradcheck(everything, (w, z), atol=1e-7, fast_mode=True)


@pytest.mark.parametrize(
    ("m", "shape"),
    [
        (MatrixBall(), (2, 3)),
        (SiegelDisk(scale=2.0), (3, 3)),
        (ComplexBall(), (3,)),
        (PoincareDisk(scale=2.0), (1,)),
        (HPD(), (3, 3)),
        (Product((HPD(), (2, 2)), (MatrixBall(), (2, 2)), weights=(2.0, 1.0)), (8,)),
    ],
)
def test_batch_norm_theorems_to_twelve_digits(m: MatrixBall, shape: tuple[int, ...]) -> None:
    """mean(out) = B and var(out) = s^2 v / (v + eps)."""
    x = m.random(40, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    b = m.random(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.complex128)
    layer = RiemannianBatchNorm(m, shape, dtype=torch.complex128)
    layer.set_bias_point(b)
    with torch.no_grad():
        layer.weight.fill_(0.8)
        y, v = layer(x), m.variance(x)
    close(m.mean(y), b, 1e-12)
    close(m.variance(y), 0.64 * v / (v + layer.eps), 1e-12)


# The mean.


@pytest.mark.parametrize(("n", "limit"), [(1, 12), (2, 12), (4, 22)])
def test_mean_converges_in_few_iterations(n: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 points of spread 3, where unit steps cycle; every iteration is one decomposition of all points."""
    disk = SiegelDisk()
    x = spread_points(disk, 512, n, 3.0)
    calls = []
    original = maps.whitened_logarithm
    monkeypatch.setattr(maps, "whitened_logarithm", lambda *a: calls.append(1) or original(*a))
    mean = disk.mean(x)
    assert len(calls) <= limit
    monkeypatch.undo()
    assert float(disk.norm(mean, disk.logmap(mean, x).mean(0))) < 1e-10


def test_steps_without_synchronisation_reach_the_same_mean() -> None:
    """The step 2 / (1 + L) alone contracts at spread 5, where the unit step diverges."""
    disk = SiegelDisk()
    x = spread_points(disk, 64, 2, 5.0)
    close(disk.mean(x, steps=60), disk.mean(x), 1e-10)
    mean = x.mean(0)
    for _ in range(60):
        mean = disk.expmap(mean, disk.logmap(mean, x).mean(0))
    assert float(disk.norm(mean, disk.logmap(mean, x).mean(0))) > 0.1


def test_mean_gradient_with_weights_and_fixed_steps() -> None:
    disk = SiegelDisk()
    x = disk.random(5, 2, 2, dtype=torch.complex128).requires_grad_()
    w = torch.rand(5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: disk.mean(symmetric(a), b), (x, w), atol=1e-6)
    (exact,) = torch.autograd.grad(disk.mean(x).real.sum(), x)
    (fixed,) = torch.autograd.grad(disk.mean(x, steps=30).real.sum(), x)
    close(fixed, exact, 1e-9)


def test_mean_of_points_that_do_not_all_converge_together() -> None:
    """Batches are independent: a tight set and a spread one give what each gives alone."""
    disk = SiegelDisk()
    tight, wide = spread_points(disk, 16, 2, 0.1), spread_points(disk, 16, 2, 4.0)
    both = disk.mean(torch.stack([tight, wide], dim=1))
    close(both, torch.stack([disk.mean(tight), disk.mean(wide)]), 1e-12)


# Wrong input.


def test_a_point_outside_is_named_with_its_singular_value() -> None:
    m, x = MatrixBall(), MatrixBall().random(4, 2, 2, dtype=torch.complex128)
    for bad in (1.25, 1.0):
        y = x.clone()
        y[2] = bad * torch.eye(2)
        for call in (
            lambda b: m.dist(x, b),
            lambda b: m.logmap(x, b),
            lambda b: m.mean(b),
            lambda b: m.center(b, x),
            lambda b: m.kobayashi_dist(x, b),
        ):
            with pytest.raises(ValueError, match=rf"\[2\].*largest singular value.*{bad:.3g}"):
                call(y)
        with pytest.raises(ValueError, match=r"point\[2\].*largest singular value"):
            m.assert_check_point_on_manifold(y, "point")
        with pytest.raises(ValueError, match=r"input\[2\].*largest singular value"):
            RiemannianBatchNorm(m, (2, 2), dtype=torch.complex128)(y)


def test_an_unsymmetric_matrix_is_not_in_the_siegel_disk() -> None:
    m, x = SiegelDisk(), SiegelDisk().random(3, 2, 2, dtype=torch.complex128)
    y = x.clone()
    y[1, 0, 1] += 0.01
    for call in (lambda: m.dist(x, y), lambda: m.mean(y), lambda: m.logmap(y, x), lambda: m.expmap(y, x)):
        with pytest.raises(ValueError, match=r"\[1\].*symmetric.*0\.01"):
            call()
    with pytest.raises(ValueError, match=r"\[1\].*symmetric"):
        RiemannianBatchNorm(m, (2, 2), dtype=torch.complex128)(y)
    with pytest.raises(ValueError, match="square"):
        m.dist(torch.zeros(2, 3, dtype=torch.complex128), torch.zeros(2, 3, dtype=torch.complex128))


def test_real_and_mixed_dtypes_are_refused() -> None:
    m = SiegelDisk()
    x = m.random(2, 2, dtype=torch.complex128)
    with pytest.raises(TypeError, match=r"x must be complex for the Siegel disk, got torch.float64"):
        m.dist(x.real, x)
    with pytest.raises(TypeError, match="y must have the dtype of x"):
        m.dist(x, x.to(torch.complex64))
    with pytest.raises(TypeError, match="dtype must be complex"):
        m.origin(2, 2, dtype=torch.float32)
    with pytest.raises(TypeError, match="must be complex"):
        m.mean(x.real[None])
    ok, reason = m.check_point_on_manifold(x.real, explain=True)
    assert not ok
    assert "complex" in reason


def test_upper_half_space_needs_a_positive_imaginary_part() -> None:
    y = 1j * torch.eye(2, dtype=torch.complex128).repeat(3, 1, 1)
    y[1, 0, 0] = 2 - 1j
    with pytest.raises(ValueError, match=r"y\[1\].*positive definite imaginary part.*-1"):
        SiegelDisk().from_upper_half_space(y)
    y[1, 0, 0], y[1, 0, 1] = 1j, 0.5
    with pytest.raises(ValueError, match=r"y\[1\].*symmetric.*0\.5"):
        SiegelDisk().from_upper_half_space(y)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_is_not_positive(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        SiegelDisk(scale=scale)


def test_functional_transforms_give_nan_where_they_cannot_raise() -> None:
    m = MatrixBall()
    x, y = m.random(2, 3, 2, 2, dtype=torch.complex128)
    y[1] = 2 * torch.eye(2)
    result = torch.func.vmap(m.dist2)(x, y)
    assert torch.isnan(result).tolist() == [False, True, False]
