"""Polar factors against the singular value decomposition, published coefficients, and finite differences."""

import json

import pytest
import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

from manifoldnorm.linalg.polar import (
    NEWTON_SCHULZ_COEFFICIENTS,
    msign,
    polar_express_coefficients,
    polar_factor_nearby,
    polynomial_msign,
)
from manifoldnorm.linalg.spectral_norm import leading_singular_pair, spectral_norm
from tests.conftest import GOLDEN

# arXiv 2505.16932, the list in the authors' code.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
]
SHAPES = [(7, 4), (4, 7), (5, 5), (1, 6), (6, 1), (3, 2, 6, 4)]
EXACT = ["eigh", "svd"]


def polar(x: Tensor, rank: int | None = None) -> Tensor:
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    return left[..., :rank] @ right[..., :rank, :]


def test_generator_reproduces_the_published_coefficients() -> None:
    for ours, published in zip(polar_express_coefficients(8, safety=1.0), PUBLISHED):
        assert ours == pytest.approx(published, rel=1e-9)
    for ours, published in zip(polar_express_coefficients(7), PUBLISHED):
        assert ours == pytest.approx([c / 1.01**k for c, k in zip(published, (1, 3, 5))], rel=1e-9)
    assert polar_express_coefficients(9)[-1] == PUBLISHED[-1]


@pytest.mark.parametrize("lower", [1e-4, 1e-2, 0.3])
def test_composition_converges_on_its_interval(lower: float) -> None:
    s = torch.linspace(lower, 1, 5000, dtype=torch.float64)
    errors = []
    for steps in (3, 6, 12):
        y = s
        for a, b, c in polar_express_coefficients(steps, lower=lower, safety=1.0):
            y = a * y + b * y**3 + c * y**5
        errors.append(float((y - 1).abs().max()))
    assert errors[0] >= errors[1] >= errors[2]
    assert errors[2] < 1e-10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", EXACT)
def test_exact_methods(method: str, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float64, torch.complex128):
        x = torch.randn(shape, dtype=dtype)
        torch.testing.assert_close(msign(x, method), polar(x), rtol=1e-10, atol=1e-10)
    y = torch.randn(shape)
    result = msign(y, method)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, polar(y.double()).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", EXACT)
def test_rank_deficient(method: str) -> None:
    """Directions of zero singular values stay zero, also when they are rounding noise."""
    x = torch.randn(8, 3, dtype=torch.float64) @ torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(msign(x, method), polar(x, 3), rtol=1e-10, atol=1e-10)
    y = torch.randn(40, 3) @ torch.randn(3, 30)
    torch.testing.assert_close(msign(y, method).double(), polar(y.double(), 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [*EXACT, "newton_schulz5", "polar_express"])
def test_zero_and_not_finite(method: str) -> None:
    x = torch.randn(4, 3, 2)
    x[1] = 0
    x[2, 0, 0] = torch.nan
    x[3, 1, 1] = torch.inf
    result = msign(x, method)
    assert not result[1].any()
    assert result[2].isnan().all()
    assert result[3].isnan().all()
    torch.testing.assert_close(result[0], msign(x[0], method))


def test_golden_zero_gradient() -> None:
    case = next(c for c in json.loads((GOLDEN / "faults_optim.json").read_text()) if c["id"] == "S35")
    g = torch.tensor(case["inputs"]["G"], dtype=torch.float64)
    expected = torch.tensor(case["expected"], dtype=torch.float64)
    for method in (*EXACT, "newton_schulz5", "polar_express"):
        torch.testing.assert_close(msign(g, method).double(), expected, rtol=0, atol=case["tolerance"]["abs"])


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
@pytest.mark.parametrize("method", [*EXACT, "newton_schulz5", "polar_express"])
def test_any_magnitude(method: str, scale: float) -> None:
    x = torch.randn(5, 4)
    torch.testing.assert_close(msign(scale * x, method), msign(x, method), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("method", EXACT)
def test_first_and_second_derivatives(method: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = torch.randn(2, *shape, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: msign(a, method), (x,))
    assert torch.autograd.gradgradcheck(lambda a: msign(a, method), (x,))


def test_gradient_at_repeated_singular_values() -> None:
    """At an orthonormal matrix, where the decomposition's own gradient is NaN, it is the tangent projection."""
    x = torch.linalg.qr(torch.randn(5, 3, dtype=torch.float64))[0].requires_grad_()
    g = torch.randn(5, 3, dtype=torch.float64)
    for method in EXACT:
        (gradient,) = torch.autograd.grad(msign(x, method), x, g)
        q = x.detach()
        torch.testing.assert_close(gradient, g - q @ (q.mT @ g + g.mT @ q) / 2, rtol=1e-10, atol=1e-10)


def test_gradient_in_matrices_of_constant_rank() -> None:
    a = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for method in EXACT:
        assert torch.autograd.gradcheck(lambda a, b: msign(a @ b, method), (a, b))  # noqa: B023


def test_vmap_and_transforms() -> None:
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    for method in EXACT:
        mapped = torch.func.vmap(lambda a: msign(a, method))(x)  # noqa: B023
        torch.testing.assert_close(mapped, msign(x, method))
        gradient = torch.func.vmap(torch.func.grad(lambda a: (msign(a, method) ** 3).sum()))(x)  # noqa: B023
        y = x.clone().requires_grad_()
        (msign(y, method) ** 3).sum().backward()
        torch.testing.assert_close(gradient, y.grad)


@pytest.mark.parametrize("shape", [(24, 64, 64), (3, 33, 17), (2, 17, 40), (1, 256, 128), (4, 256, 256), (5, 1, 8)])
def test_newton_schulz_equals_torch_bit_for_bit(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    expected = torch.stack([_zeropower_via_newtonschulz(m, NEWTON_SCHULZ_COEFFICIENTS, 5, 1e-7) for m in x])
    assert torch.equal(msign(x, eps=1e-7), expected)


def test_accuracy_table() -> None:
    """Thresholds of the accuracies that the documentation states, 1024 x 256 and 256 x 256 Gaussian."""
    square, tall = torch.randn(256, 256), torch.randn(1024, 256)

    def error(x: Tensor, y: Tensor) -> float:
        return float((y.double() - polar(x.double())).norm() / 16)

    assert error(tall, msign(tall, "polar_express")) < 1e-4
    # The smallest singular values of a square Gaussian matrix lie below the interval that eight steps cover.
    assert error(square, msign(square, "polar_express")) < 0.03
    assert error(square, msign(square, "polar_express", steps=12)) < 1e-4
    assert 0.05 < error(square, msign(square, "polar_express", steps=5)) < error(square, msign(square)) < 0.3
    assert error(square, msign(square, "eigh")) < 1e-5
    values = torch.linalg.svdvals(msign(tall).float())
    assert 0.6 < float(values[-1]) < float(values[0]) < 1.25


def test_svd_keeps_small_singular_values_of_tall_matrices() -> None:
    """A cut-off that grows with the number of rows would drop the values below 1e-4 here."""
    left, right = torch.linalg.qr(torch.randn(1024, 64))[0], torch.linalg.qr(torch.randn(64, 64))[0]
    x = (left * torch.logspace(0, -4.5, 64)) @ right
    for method in EXACT:
        values = torch.linalg.svdvals(msign(x, method))
        torch.testing.assert_close(values, torch.ones(64), rtol=1e-3, atol=1e-3)


def test_autocast_is_switched_off() -> None:
    x = torch.randn(20, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(msign(x, "polar_express"), msign(x, "polar_express"), rtol=0, atol=0)
        inside = msign(x, "polar_express"), msign(x, "eigh")
    for value, method in zip(inside, ("polar_express", "eigh")):
        torch.testing.assert_close(value, msign(x, method), rtol=1e-6, atol=1e-6)


def test_polynomials_are_differentiable() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    coefficients = polar_express_coefficients(4)
    assert torch.autograd.gradcheck(lambda a: polynomial_msign(a, coefficients, dtype=torch.float64), (x,))


@pytest.mark.parametrize("bound", [0.0, 1e-3, 0.1, 0.45])
@pytest.mark.parametrize("shape", [(9, 5), (200, 140)])
def test_nearby(bound: float, shape: tuple[int, int]) -> None:
    size = shape[1]
    left, right = torch.linalg.qr(torch.randn(shape).double())[0], torch.linalg.qr(torch.randn(size, size).double())[0]
    values = (1 + bound * torch.linspace(-1, 1, size, dtype=torch.float64)).sqrt()
    x = 3 * (left * values) @ right
    factor = polar_factor_nearby(x, bound=bound, size=3.0)
    torch.testing.assert_close(factor, 3 * left @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(polar_factor_nearby(x.mT, bound=bound, size=3.0).mT, factor, rtol=1e-12, atol=1e-12)
    for y in (x.float(), x.float().mT):
        single = polar_factor_nearby(y, bound=bound, size=3.0).double()
        torch.testing.assert_close(
            single, 3 * (left @ right if y.shape == shape else (left @ right).mT), rtol=0, atol=6e-6
        )


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"shape \(\.\.\., m, n\), got shape \(3,\)"):
        msign(torch.zeros(3))
    with pytest.raises(TypeError, match="floating point or complex"):
        msign(torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="method must be one of newton_schulz5"):
        msign(torch.zeros(3, 3), "newton")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps applies to the polynomial methods"):
        msign(torch.zeros(3, 3), "svd", steps=3)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        msign(torch.zeros(3, 3), steps=0)
    with pytest.raises(ValueError, match="bound must lie"):
        polar_factor_nearby(torch.eye(3), bound=0.7)
    with pytest.raises(ValueError, match="lower must lie"):
        polar_express_coefficients(3, lower=0.0)


@pytest.mark.slow
def test_compile() -> None:
    x = torch.randn(4, 3, requires_grad=True)

    def run(a: Tensor) -> Tensor:
        return msign(a, "eigh").square().sum() + msign(a, "polar_express").sum() + (msign(a, "svd") ** 3).sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    (gradient,) = torch.autograd.grad(compiled, x)
    torch.testing.assert_close(compiled, run(x))
    torch.testing.assert_close(gradient, torch.autograd.grad(run(x), x)[0], rtol=1e-4, atol=1e-5)


def clustered(m: int, n: int, spread: float) -> Tensor:
    left, right = torch.linalg.qr(torch.randn(m, n).double())[0], torch.linalg.qr(torch.randn(n, n).double())[0]
    return (left * (1 - spread * torch.rand(n, dtype=torch.float64))) @ right


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (1, 5), (3, 20, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spectral_norm_estimates(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    truth = torch.linalg.svdvals(x.double())[..., 0]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(spectral_norm(x).double(), truth, rtol=tolerance, atol=0)
    ratio = spectral_norm(x, "schatten").double() / truth
    assert (ratio >= 1 - tolerance).all()
    assert (ratio <= min(shape[-2:]) ** (1 / 256) + 1e-6).all()
    assert (spectral_norm(x, "power").double() <= truth * (1 + tolerance)).all()
    pair = leading_singular_pair(x)
    response = (pair.left.mT.double() @ x.double() @ pair.right.double()).squeeze((-2, -1))
    torch.testing.assert_close(response, truth, rtol=tolerance, atol=0)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0])
def test_leading_pair_of_large_matrices(spread: float) -> None:
    """Good to 1e-6 in the value; the vectors respond with it, also where all singular values are equal."""
    x = torch.stack([clustered(200, 160, spread), clustered(200, 160, spread)]).float()
    truth = torch.linalg.svdvals(x.double())[..., 0]
    pair = leading_singular_pair(x)
    torch.testing.assert_close(pair.value.double(), truth, rtol=1e-6, atol=0)
    response = (pair.left.mT.double() @ x.double() @ pair.right.double()).squeeze((-2, -1))
    torch.testing.assert_close(response, truth, rtol=1e-5, atol=0)


def test_spectral_norm_of_clustered_values() -> None:
    """Where power iteration fails: exact and the upper bound hold, the power iteration is below."""
    x = clustered(128, 128, 0.1).float()
    truth = float(torch.linalg.svdvals(x.double())[0])
    assert float(spectral_norm(x)) == pytest.approx(truth, rel=1e-6)
    assert truth * (1 - 1e-6) < float(spectral_norm(x, "schatten")) < truth * 128 ** (1 / 256)
    assert float(spectral_norm(x, "power")) < truth * (1 - 1e-3)


def test_spectral_norm_at_any_magnitude_and_not_finite() -> None:
    x = torch.stack([torch.diag(torch.tensor([v, v / 2])) for v in (1e-30, 1e30, 0.0, 1.0, 1.0)])
    x[3, 0, 1] = torch.nan
    x[4, 0, 1] = torch.inf
    for method in ("exact", "schatten", "power"):
        value = spectral_norm(x, method)
        torch.testing.assert_close(value[:3], torch.tensor([1e-30, 1e30, 0.0]), rtol=1e-5, atol=0)
        assert value[3:].isnan().all()


def test_spectral_norm_gradient_is_the_leading_pair() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(spectral_norm(x), x)
    pair = leading_singular_pair(x)
    torch.testing.assert_close(gradient, pair.left @ pair.right.mT, rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(spectral_norm, (x,))
    with pytest.raises(ValueError, match="method must be one of exact"):
        spectral_norm(x, "lanczos")  # type: ignore[arg-type]
