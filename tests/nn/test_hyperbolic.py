"""Hyperbolic layers: golden values, the definition, limits, depth, gradients, bad input, module manners."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.nn.curvature import Curvature
from manifoldnorm.nn.hyperbolic import (
    FromBall,
    FromEuclidean,
    GlobalMidpoint,
    MidpointPool2d,
    MobiusResidual,
    PoincareConv2d,
    PoincareLinear,
    PoincareMLR,
    PoincareReLU,
    ToBall,
)
from manifoldnorm.nn.hyperbolic_init import INITIALIZERS, beta_factor
from tests.conftest import GOLDEN

CURVATURES = ("0.1", "1")


def golden(c: str) -> tuple[float, dict[str, Tensor]]:
    with np.load(GOLDEN / f"poincare_c{c}.npz") as file:
        values = {key: torch.from_numpy(file[key]) for key in file}
    return float(values["c"]), values


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


def filled(layer: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    layer = layer.to(weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("c", CURVATURES)
def test_golden_layers(c: str, dtype: torch.dtype, tolerance: float) -> None:
    """Scores, fully connected layer and convolution against fifty-digit arithmetic."""
    k, g = golden(c)
    g = {key: value.to(dtype) for key, value in g.items()}
    u = FromBall(k)(g["x"])
    mlr = filled(PoincareMLR(4, 5, c=k), g["z"].mT, g["r"])
    close(mlr(u), g["mlr"], tolerance)
    linear = filled(PoincareLinear(4, 5, c=k), g["z"].mT, g["r"])
    close(ToBall(k)(linear(u)), g["fc"], tolerance)
    convolution = filled(PoincareConv2d(2, 3, 3, padding=1, c=k), g["conv_z"], g["conv_r"])
    close(ToBall(k)(convolution(FromBall(k)(g["conv_x"]))), g["conv_out_k3p1"], tolerance)


def unfolded(layer: PoincareConv2d, u: Tensor) -> Tensor:
    """The definition: log_0, unfold, beta factor, exp_0, fully connected layer on the ball, log_0."""
    c, window = layer.c, layer.kernel_size
    size = layer.in_channels * window[0] * window[1]
    columns = F.unfold(u, window, layer.dilation, layer.padding, layer.stride)
    p = maps.exp0(columns * beta_factor(layer.in_channels, size), c, 1)
    s, z = maps.root(c), layer.weight.flatten(1)
    norm = z.norm(dim=1)[:, None]
    conformal = 2 / (1 - c * (p * p).sum(1, keepdim=True))
    product = torch.einsum("oi,nip->nop", z / norm, p)
    r = layer.bias[:, None]
    score = (2 * norm / s) * torch.asinh(
        conformal * s * product * torch.cosh(2 * s * r) - (conformal - 1) * torch.sinh(2 * s * r)
    )
    w = torch.sinh(s * score) / s
    y = w / (1 + torch.sqrt(1 + c * (w * w).sum(1, keepdim=True)))
    height = [
        (n + 2 * q - d * (k - 1) - 1) // t + 1
        for n, q, d, k, t in zip(u.shape[-2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride)
    ]
    return maps.log0(y, c, 1).unflatten(2, height)


@pytest.mark.parametrize("c", [0.1, 1.0])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": (3, 1), "padding": (1, 0), "stride": (1, 2)},
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": (4, 2), "stride": (3, 2), "padding": (2, 1)},
        {"kernel_size": 2, "stride": (4, 3), "dilation": (1, 3), "padding": 1},
        {"kernel_size": 1},
    ],
)
def test_fused_convolution_is_the_definition(c: float, window: dict[str, int]) -> None:
    """Values to 1e-12 and gradients to 1e-10, for all window parameters."""
    layer = PoincareConv2d(3, 5, c=c, dtype=torch.float64, **window)
    nn.init.normal_(layer.bias, std=0.3)
    u = 0.5 * torch.randn(2, 3, 7, 6, dtype=torch.float64)
    weight = None
    results = []
    for function in (layer, lambda v: unfolded(layer, v)):
        v = u.clone().requires_grad_()
        y = function(v)
        weight = torch.randn_like(y) if weight is None else weight
        results.append((y, *torch.autograd.grad((y * weight).sum(), (v, layer.weight, layer.bias))))
    close(results[0][0], results[1][0], 1e-12)
    for a, b in zip(results[0][1:], results[1][1:]):
        close(a, b, 1e-10)


def test_small_curvature_is_torch() -> None:
    """c -> 0: 2 conv(u, z) beta - 2 |z| r, 4 (<u, z> - |z| r), averages and sums, to 1e-6 in float64."""
    c, u = 1e-10, torch.randn(2, 3, 6, 6, dtype=torch.float64)
    layer = PoincareConv2d(3, 4, 3, padding=1, c=c, dtype=torch.float64)
    nn.init.normal_(layer.bias)
    beta, norm = beta_factor(3, 27), layer.weight.flatten(1).norm(dim=1)
    close(layer(u), F.conv2d(u, 2 * beta * layer.weight, -2 * norm * layer.bias, padding=1), 1e-6)
    mlr = PoincareMLR(3, 5, c=c, dtype=torch.float64)
    nn.init.normal_(mlr.bias)
    rows = u[:, :, 0, 0]
    close(mlr(rows), 4 * (rows @ mlr.weight.mT - mlr.weight.norm(dim=1) * mlr.bias), 1e-6)
    close(MidpointPool2d(2, c=c)(u), F.avg_pool2d(u, 2), 1e-6)
    close(GlobalMidpoint(c=c)(u), u.mean((2, 3)), 1e-6)
    close(MobiusResidual(c=c)(u, u.flip(0)), u + u.flip(0), 1e-6)


@pytest.mark.parametrize("init", sorted(INITIALIZERS))
@pytest.mark.parametrize("c", [1.0, 5.0])
def test_deep_stacks_without_batch_norm_stay_finite(init: str, c: float) -> None:
    """24 convolutions in float32, large input: finite forward and backward, features within the documented cut."""
    layers = nn.Sequential(*(PoincareConv2d(16, 16, 3, padding=1, c=c, init=init) for _ in range(24)))
    for scale in (1.0, 50.0, 1e4):
        u = (scale * torch.randn(2, 16, 8, 8)).requires_grad_()
        y = FromEuclidean(c)(u)
        y = layers(y)
        radius = 2 * math.sqrt(c) * y.detach().norm(dim=1).max()
        assert float(radius) <= maps.largest_radius(torch.float32) * (1 + 1e-5)
        y.square().sum().backward()
        for t in (u, *layers.parameters()):
            assert torch.isfinite(t.grad).all()
        layers.zero_grad()


@pytest.mark.parametrize("c", [1e-6, 0.1, 1.0, 10.0])
def test_far_features_keep_their_direction_in_float32(c: float) -> None:
    """Scores whose sinh overflows float32 leave the cut result pointing where float64 has it, and so its gradients."""
    generator = torch.Generator().manual_seed(3)
    u = torch.randn(8, 6, 5, 5, generator=generator)
    u = u / u.norm(dim=1, keepdim=True) * (6 / c**0.5) * (0.5 + 0.5 * torch.rand(8, 1, 5, 5, generator=generator))
    weight = torch.randn(8, 4, 5, 5, generator=generator)
    single = PoincareConv2d(6, 4, 3, padding=1, c=c)
    results = []
    for layer in (single, copy.deepcopy(single).double()):
        x = u.to(layer.weight.dtype).requires_grad_()
        y = maps.clip_norm(layer(x), maps.largest_radius(torch.float32) / (2 * c**0.5), 1)
        results.append((y, *torch.autograd.grad((y * weight).sum(), (x, layer.weight, layer.bias))))
    # The radius is cut, so that gradients are what is left of larger numbers.
    for found, expected, tolerance in zip(*results, (1e-5, 1e-3, 1e-3, 1e-3)):
        assert float((found - expected).detach().abs().max()) < tolerance * float(expected.detach().abs().max())


def test_overflow_is_cut_and_nan_stays_nan() -> None:
    """Infinite features become the longest representable vectors; a NaN is not hidden."""
    x = torch.tensor([[math.inf, 1.0], [-1e38, 1e38], [0.3, -0.2], [math.nan, 0.0]])
    u = FromEuclidean(1.0)(x)
    assert torch.isfinite(u[:3]).all()
    close(2 * u[:2].norm(dim=1), torch.full((2,), maps.largest_radius(torch.float32)), 1e-5)
    close(u[2], x[2], 1e-7)
    assert torch.isnan(u[3]).any()
    layer = PoincareLinear(2, 3)
    assert torch.isfinite(layer(u[:3])).all()
    assert torch.isnan(layer(u)[3]).all()


def test_gradients_at_zero_and_at_equal_points() -> None:
    """First and second derivatives of every layer at the origin, at repeated points and elsewhere, also in c."""
    zero = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    equal = torch.full_like(zero, 0.4)
    mixed = torch.cat([0.5 * torch.randn_like(zero)[:1], zero[:1]])
    curvature = Curvature(0.7, dtype=torch.float64)
    convolution = PoincareConv2d(2, 2, 2, c=curvature, dtype=torch.float64)
    linear, mlr = (kind(2, 3, c=curvature, dtype=torch.float64) for kind in (PoincareLinear, PoincareMLR))
    residual, pool = MobiusResidual(curvature), MidpointPool2d(2, stride=1, c=curvature)

    def over(module: nn.Module, *inputs: Tensor) -> object:
        names = list(dict(module.named_parameters()))

        def run(*values: Tensor) -> Tensor:
            return torch.func.functional_call(module, dict(zip(names, values)), values[len(names) :])

        leaves = tuple(t.detach().clone().requires_grad_() for t in (*module.parameters(), *inputs))
        assert torch.autograd.gradcheck(run, leaves, atol=1e-6)
        return torch.autograd.gradgradcheck(run, leaves, atol=1e-5)

    for u in (zero, equal, mixed):
        assert over(convolution, u)
        assert over(linear, u[:, :, 0, 0])
        assert over(mlr, u[:, :, 0, 0])
        assert over(residual, u[:1, :, :1, :2], u[1:, :, :1, :2])
        assert over(pool, u[:1])
        assert over(GlobalMidpoint(curvature), u[:1])
    assert over(residual, equal[:1, :, :1, :1], -equal[:1, :, :1, :1])


def test_zero_filters_learn() -> None:
    """A filter that starts at zero gets the gradient of 2 beta conv(u, z), not zero or NaN."""
    u = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    layer = PoincareConv2d(3, 2, 3, c=1e-8, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    weight = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    (layer(u) * weight).sum().backward()
    reference = torch.zeros_like(layer.weight).requires_grad_()
    (F.conv2d(u, 2 * beta_factor(3, 27) * reference) * weight).sum().backward()
    close(layer.weight.grad, reference.grad, 1e-6)


def test_pooling_returns_equal_points_and_leaves_padding_out() -> None:
    u = torch.randn(1, 3, 1, 1, dtype=torch.float64).expand(1, 3, 5, 5)
    for pool in (MidpointPool2d(2, stride=1), MidpointPool2d(3, stride=2, padding=1)):
        y = pool(u)
        close(y, u[..., : y.shape[-2], : y.shape[-1]], 1e-12)
    single = pool(u.float())
    close(single, y, 1e-6)


def test_far_points_in_float64_keep_equal_midpoints() -> None:
    """At rho = 28 the sum on the hyperboloid has lost every digit of its length; the stable form has not."""
    u = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    u = 14 * u / u.norm(dim=1, keepdim=True)
    same = u[..., :1, :1].expand_as(u)
    close(GlobalMidpoint(1.0)(same), same[..., 0, 0], 1e-9)


def test_initialisations() -> None:
    """Variance is preserved where space is flat; "identity" is the identity there; the others have their formulas."""
    u = torch.randn(8, 16, 12, 12)
    layer = PoincareConv2d(16, 16, 3, padding=1, c=1e-6)
    inner = layer(u)[..., 1:-1, 1:-1]
    # The default gain is sqrt(2), for a ReLU behind it.
    assert float(inner.detach().std() / u.std()) == pytest.approx(math.sqrt(2), rel=0.1)
    close(PoincareConv2d(16, 16, 3, padding=1, c=1e-6, init="identity")(u), u, 1e-3)
    assert float(PoincareConv2d(16, 16, 3, init="hnn++").weight.detach().std()) == pytest.approx(
        (2 * 144 * 16) ** -0.5, rel=0.1
    )
    assert PoincareConv2d(4, 3, 3, init="eye").weight.flatten(1)[:, :3].diag().tolist() == [0.5] * 3
    with pytest.raises(ValueError, match="init must be one of"):
        PoincareLinear(2, 2, init="kaiming")
    first, second = (PoincareConv2d(2, 2, 3) for _ in range(2))
    for each in (first, second):
        each.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(first.weight, second.weight)


def test_curvature_is_shared_learned_and_starts_where_it_says() -> None:
    curvature = Curvature(0.3)
    assert float(curvature().detach()) == pytest.approx(0.3)
    assert float(Curvature(200.0)().detach()) == pytest.approx(200.0)
    model = nn.Sequential(PoincareConv2d(2, 3, 3, c=curvature), PoincareReLU(), GlobalMidpoint(curvature))
    model(torch.randn(2, 2, 5, 5)).sum().backward()
    assert float(curvature.theta.grad.abs()) > 0
    twin = copy.deepcopy(model)
    assert twin[0].shared_curvature is twin[2].shared_curvature
    assert twin[0].shared_curvature is not curvature
    fixed = Curvature(0.3, learnable=False)
    assert not list(fixed.parameters())


MODULES = [
    (PoincareConv2d(3, 4, 3, c=0.5), (2, 3, 6, 6)),
    (PoincareLinear(3, 4, c=Curvature(0.5)), (5, 3)),
    (PoincareMLR(3, 4), (5, 3)),
    (MidpointPool2d(2), (2, 3, 6, 6)),
    (GlobalMidpoint(), (2, 3, 6, 6)),
]


@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda v: type(v).__name__)
def test_module_manners(module: nn.Module, shape: tuple[int, ...]) -> None:
    """state_dict, deepcopy, pickle, double, autocast, half input, empty batches, vmap over samples."""
    x = torch.randn(shape)
    y = module(x)
    twin = copy.deepcopy(module)
    twin.load_state_dict(torch.load(_saved(module), weights_only=True))
    for other in (twin, pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), y)
    close(copy.deepcopy(module).double()(x.double()), y, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x), y)
    half = module(x.bfloat16())
    assert half.dtype == torch.bfloat16
    close(half.float(), y, 5e-2)
    assert module(x[:0]).shape == (0, *y.shape[1:])
    close(torch.func.vmap(lambda row: module(row[None])[0])(x), y, 1e-5)


def _saved(module: nn.Module) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.slow
@pytest.mark.parametrize(("module", "shape"), MODULES, ids=lambda v: type(v).__name__)
def test_compiles_without_graph_breaks(module: nn.Module, shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    gradients = []
    for run in (module, compiled):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        run(x).square().sum().backward()
        gradients.append(x.grad)
    close(gradients[1], gradients[0], 1e-5)


def test_bad_input_is_explained() -> None:
    """Each error names what was expected, what came, and what would fit."""
    layer = PoincareConv2d(3, 4, 3)
    with pytest.raises(ValueError, match=r"3 channels on axis 1, shape \(B, channels, H, W\), got \(2, 4, 6, 6\)"):
        layer(torch.randn(2, 4, 6, 6))
    with pytest.raises(TypeError, match=r"input has dtype torch\.float64 but the layer has torch\.float32; convert"):
        layer(torch.randn(2, 3, 6, 6, dtype=torch.float64))
    with pytest.raises(TypeError, match="floating point"):
        layer(torch.ones(2, 3, 6, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="3 entries in its last dimension"):
        PoincareLinear(3, 4)(torch.randn(2, 4))
    with pytest.raises(ValueError, match="must have one shape"):
        MobiusResidual()(torch.randn(2, 3), torch.randn(2, 4))
    with pytest.raises(ValueError, match=r"c must be positive and finite \(the curvature is -c\), got -1"):
        PoincareConv2d(3, 4, 3, c=-1.0)
    with pytest.raises(ValueError, match="c must be positive"):
        Curvature(0.0)
    with pytest.raises(ValueError, match="kernel_size must be an integer of at least 1"):
        PoincareConv2d(3, 4, 0)
    with pytest.raises(ValueError, match="at most half"):
        MidpointPool2d(2, padding=2)
    with pytest.raises(
        ValueError, match=r"at index \[1\] has norm 1.5 and lies outside the ball of radius 1/sqrt\(c\) = 1"
    ):
        FromBall(1.0)(torch.tensor([[0.1, 0.2], [1.5, 0.0]]))
    x = torch.zeros(1, 2, 2, 2)
    x[0, :, 1, 0] = 0.9
    with pytest.raises(ValueError, match=r"along axis 1 at index \[0, 1, 0\]"):
        FromBall(1.0)(x)


def test_ball_round_trip() -> None:
    u = torch.randn(50, 4)
    close(FromBall(0.5)(ToBall(0.5)(u)), u, 1e-4)
    far = ToBall(1.0)(100 * u)
    assert float((far.double() ** 2).sum(1).max()) < 1
