"""Positive definite matrices of condition up to 1e12, against 50 digits, and points that are not finite."""

import math

import mpmath
import pytest
import torch
from torch import Tensor

from manifoldnorm import (
    HPD,
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
    CorrelationLogScaled,
    CorrelationOffLog,
    Euclidean,
    Manifold,
    MatrixBall,
    Rotations,
    SiegelDisk,
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
    Sphere,
)


def spd(n: int, condition: float, *batch: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Matrices with eigenvalues evenly spread on a logarithmic scale and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(*batch, n, n, dtype=torch.float64, generator=generator))[0]
    values = torch.logspace(0, -math.log10(condition), n, dtype=torch.float64)
    x = (q * (scale * values)) @ q.mT
    return 0.5 * (x + x.mT)


def exact(x: Tensor) -> mpmath.matrix:
    return mpmath.matrix(x.double().tolist())


def rounded(x: mpmath.matrix) -> Tensor:
    return torch.tensor([[float(x[i, j]) for j in range(x.cols)] for i in range(x.rows)], dtype=torch.float64)


def function_of(x: mpmath.matrix, function: object) -> mpmath.matrix:
    values, vectors = mpmath.eigsy(x)
    return vectors * mpmath.diag([function(v) for v in values]) * vectors.T


def length(x: mpmath.matrix) -> mpmath.mpf:
    return mpmath.sqrt(sum(a * a for a in x))


def whitened(x: mpmath.matrix, y: mpmath.matrix) -> tuple[mpmath.matrix, mpmath.matrix]:
    root = function_of(x, mpmath.sqrt)
    inverse = root**-1
    return root, inverse * y * inverse


def affine_invariant(x: mpmath.matrix, y: mpmath.matrix) -> mpmath.mpf:
    return length(function_of(whitened(x, y)[1], mpmath.log))


def right_invariant(x: mpmath.matrix, y: mpmath.matrix) -> mpmath.mpf:
    inverses = [mpmath.cholesky(a) ** -1 for a in (x, y)]
    return affine_invariant(*(a * a.T for a in inverses))


def log_euclidean(x: mpmath.matrix, y: mpmath.matrix) -> mpmath.mpf:
    return length(function_of(x, mpmath.log) - function_of(y, mpmath.log))


def log_cholesky(x: mpmath.matrix, y: mpmath.matrix) -> mpmath.mpf:
    a, b = mpmath.cholesky(x), mpmath.cholesky(y)
    for i in range(a.rows):
        a[i, i], b[i, i] = mpmath.log(a[i, i]), mpmath.log(b[i, i])
    return length(a - b)


DISTANCES = [
    (SPDAffineInvariant(), affine_invariant),
    (SPDCholeskyRightInvariant(), right_invariant),
    (SPDLogEuclidean(), log_euclidean),
    (SPDLogCholesky(), log_cholesky),
]


@pytest.mark.parametrize(("m", "distance"), DISTANCES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_distances(m: Manifold, distance: object, n: int, scale: float) -> None:
    """A symmetric eigensolver gives NaN, or zero digits, from condition 1e6 (float32) and 1e10 (float64) on."""
    with mpmath.workdps(50):
        for dtype, condition, tolerance in (
            (torch.float32, 1e6, 3e-6),
            (torch.float64, 1e6, 1e-10),
            (torch.float64, 1e10, 3e-7),
            (torch.float64, 1e12, 3e-5),
        ):
            x, y = spd(n, condition, scale=scale).to(dtype), spd(n, condition / 10, scale=scale, seed=1).to(dtype)
            expected = float(distance(exact(x), exact(y)))
            assert float(m.dist(x, y)) == pytest.approx(expected, rel=tolerance), (dtype, condition)


@pytest.mark.parametrize(("condition", "tolerance"), [(1e2, 1e-13), (1e6, 1e-10), (1e10, 1e-6), (1e12, 1e-4)])
def test_affine_invariant_logarithm_gradient_and_geodesic(condition: float, tolerance: float) -> None:
    """Relative errors in the norm of the space: the logarithm, the gradient of the squared distance, its end point."""
    m = SPDAffineInvariant()
    x, y = spd(4, condition), spd(4, condition / 10, seed=1)
    with mpmath.workdps(50):
        root, inner = whitened(exact(x), exact(y))
        log = rounded(root * function_of(inner, mpmath.log) * root)
        root, inner = whitened(exact(y), exact(x))
        gradient = rounded(-2 * root**-1 * function_of(inner, mpmath.log) * root**-1)
    assert float(m.norm(x, m.logmap(x, y) - log) / m.norm(x, log)) <= tolerance
    leaf = y.clone().requires_grad_()
    m.dist2(x, leaf).backward()
    error = m.egrad2rgrad(y, leaf.grad - gradient)
    assert float(m.norm(y, error) / m.norm(y, m.egrad2rgrad(y, gradient))) <= 10 * tolerance
    end = m.geodesic(x, y, 1.0)
    torch.testing.assert_close(end, y, rtol=0, atol=tolerance * float(y.abs().max()))


def test_affine_invariant_results_do_not_depend_on_the_batch() -> None:
    """Only the elements that need it are decomposed another way; a matrix that is not positive definite stays NaN."""
    m = SPDAffineInvariant()
    x, y = spd(3, 1e10, 2, 3), spd(3, 1e10, 3, seed=1)
    x[1, 2], y[0] = spd(3, 10.0), torch.diag(torch.tensor([1.0, -1e-9, 1.0], dtype=torch.float64))
    result = m.dist(x, y)
    assert result.shape == (2, 3)
    assert result[:, 0].isnan().all()
    for i in range(2):
        for j in (1, 2):
            torch.testing.assert_close(result[i, j], m.dist(x[i, j], y[j]), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("condition", "tolerance"), [(1e6, 1e-9), (1e10, 1e-6), (1e12, 1e-4)])
def test_affine_invariant_mean_is_stationary(condition: float, tolerance: float) -> None:
    """Without a `ConvergenceWarning`, which would be an error here."""
    x = spd(3, condition, 5)
    mean = exact(SPDAffineInvariant().mean(x))
    with mpmath.workdps(50):
        total = mpmath.zeros(3)
        for point in x:
            total += function_of(whitened(mean, exact(point))[1], mpmath.log)
        assert float(length(total)) <= tolerance


def test_float32_is_rounded_once() -> None:
    """The whole chain runs in float64, so that float32 results are those of float64, rounded."""
    x, y = spd(5, 1e6, 8).float(), spd(5, 1e5, 8, seed=1).float()
    for m, _ in DISTANCES:
        for function in (m.dist, m.logmap, m.center, lambda a, b: m.geodesic(a, b, 0.3)):  # noqa: B023
            torch.testing.assert_close(function(x, y), function(x.double(), y.double()).float(), rtol=2e-7, atol=0)
    assert SPDAffineInvariant().dist(x=x, y=y).dtype == torch.float32
    assert SPDAffineInvariant().dist(x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16


COMPLEX = (HPD, SiegelDisk, MatrixBall)
EVERYWHERE = [
    (SPDAffineInvariant(), (3, 3)), (SPDCholeskyRightInvariant(), (3, 3)), (SPDLogEuclidean(), (3, 3)),
    (SPDLogCholesky(), (3, 3)), (CorrelationEuclideanCholesky(), (3, 3)), (CorrelationLogEuclideanCholesky(), (3, 3)),
    (CorrelationOffLog(), (3, 3)), (CorrelationLogScaled(), (3, 3)), (Rotations(), (2, 2)), (Rotations(), (3, 3)),
    (Rotations(), (4, 4)), (Sphere(), (3,)), (Euclidean(), (3,)), (HPD(), (2, 2)), (SiegelDisk(), (2, 2)),
    (MatrixBall(), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("m", "shape"), EVERYWHERE, ids=lambda value: repr(value))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_point_that_is_not_finite_spoils_itself_alone(m: Manifold, shape: tuple[int, ...], bad: float) -> None:
    """Its distance is NaN, not zero; the others' values and gradients are right. Complex geometries name it."""
    dtype = torch.complex128 if isinstance(m, COMPLEX) else torch.float64
    x, y = m.random(4, *shape, dtype=dtype), m.random(4, *shape, dtype=dtype)
    broken = x.clone()
    broken[1][(0,) * len(shape)] = bad
    functions = {"dist": m.dist, "dist2": m.dist2, "logmap": m.logmap, "center": m.center,
                 "geodesic": lambda a, b: m.geodesic(a, b, 0.3)}  # fmt: skip
    for name, function in functions.items():
        for swap in (False, True):
            leaf = broken.clone().requires_grad_()
            if isinstance(m, COMPLEX):
                with pytest.raises(ValueError, match=r"\[1\] is not finite"):
                    function(y, leaf) if swap else function(leaf, y)
                continue
            result = function(y, leaf) if swap else function(leaf, y)
            expected = function(y, x) if swap else function(x, y)
            assert not result[1].isfinite().all(), (name, swap)
            rest = [0, 2, 3]
            torch.testing.assert_close(result[rest], expected[rest])
            result[rest].square().sum().backward()
            assert leaf.grad[rest].isfinite().all(), (name, swap)


@pytest.mark.parametrize(
    ("dtype", "condition", "tolerance"),
    [(torch.complex64, 1e6, 3e-6), (torch.complex128, 1e10, 3e-7), (torch.complex128, 1e12, 3e-5)],
)
def test_hermitian_distance_and_mean(dtype: torch.dtype, condition: float, tolerance: float) -> None:
    """Congruence with a unitary matrix changes no distance, so that the real case is the reference."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.complex128))[0]
    real = spd(3, condition, 5)
    x = turn @ real.to(torch.complex128) @ turn.mH
    x = (0.5 * (x + x.mH)).to(dtype)
    m = HPD()
    with mpmath.workdps(50):
        a, b = (mpmath.matrix(p.to(torch.complex128).tolist()) for p in x[:2])
        values, vectors = mpmath.eighe(a)
        root = vectors * mpmath.diag([1 / mpmath.sqrt(v) for v in values]) * vectors.H
        logs = [mpmath.log(v) for v in mpmath.eighe(root * b * root, eigvals_only=True)]
        assert float(m.dist(x[0], x[1])) == pytest.approx(float(mpmath.norm(logs)), rel=tolerance)
    if dtype == torch.complex128:  # the rounding of single precision is a change of the points
        expected = SPDAffineInvariant().dist(real[0], real[1:])
        torch.testing.assert_close(m.dist(x[0], x[1:]), expected, rtol=30 * tolerance, atol=0)
        mean = m.mean(x)
        residual = m.logmap(mean, x).sum(0)
        assert float(m.norm(mean, residual)) <= 100 * tolerance
