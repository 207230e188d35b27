"""Batch norm of hyperbolic features: golden values, the theorem, the fused float32 path, running statistics."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.poincare import PoincareLogChart
from manifoldnorm.nn.curvature import Curvature
from manifoldnorm.nn.hyperbolic import FromBall, ToBall
from manifoldnorm.nn.hyperbolic_batchnorm import PoincareBatchNorm, recalibrate
from tests.conftest import GOLDEN


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


def set_to(layer: PoincareBatchNorm, weight: float, bias: Tensor) -> PoincareBatchNorm:
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.bias.copy_(bias)
    return layer


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("form", ["gyro", "parallel_transport"])
@pytest.mark.parametrize("c", ["0.1", "1"])
def test_golden_output(c: str, form: str, dtype: torch.dtype, tolerance: float) -> None:
    with np.load(GOLDEN / f"poincare_c{c}.npz") as file:
        g = {key: torch.from_numpy(file[key]).to(dtype) for key in file}
    k = float(c)
    layer = set_to(
        PoincareBatchNorm(4, c=k, form=form, eps=1e-6, dtype=dtype), float(g["bn_gamma"]) ** 0.5, g["bn_bias_tangent"]
    )
    key = "bn_gyro_midpoint" if form == "gyro" else "bn_lou_midpoint"
    close(ToBall(k)(layer(FromBall(k)(g["x"]))), g[key], tolerance)


def test_forms_agree_at_the_origin_and_differ_by_a_rotation_elsewhere() -> None:
    u, bias = torch.randn(20, 3, dtype=torch.float64), torch.tensor([0.3, -0.4, 0.2], dtype=torch.float64)
    chart = PoincareLogChart(0.8)
    outputs = []
    for b in (torch.zeros_like(bias), bias):
        gyro, lou = (
            set_to(PoincareBatchNorm(3, c=0.8, form=form, dtype=torch.float64), 0.9, b)(u)
            for form in ("gyro", "parallel_transport")
        )
        close(chart.dist(gyro, b), chart.dist(lou, b), 1e-12)
        outputs.append(float((gyro - lou).detach().abs().max()))
    assert outputs[0] < 1e-13
    assert outputs[1] > 1e-3


@pytest.mark.parametrize("average", ["midpoint", "frechet"])
def test_variance_about_the_bias_is_exact(average: str) -> None:
    """s^2 v / (v + eps) for both means; the output's Frechet mean is the bias with the Frechet mean only."""
    u, bias = torch.randn(40, 3, dtype=torch.float64), torch.tensor([0.3, -0.4, 0.2], dtype=torch.float64)
    chart = PoincareLogChart(0.8)
    layer = set_to(PoincareBatchNorm(3, c=0.8, average=average, eps=0.1, dtype=torch.float64), 0.6, bias)
    mean = chart.mean(u) if average == "frechet" else chart.midpoint(u)
    v = chart.dist2(mean, u).mean()
    y = layer(u).detach()
    close(chart.dist2(bias, y).mean(), 0.36 * v / (v + 0.1), 1e-12)
    distance = float(chart.dist(chart.mean(y), bias))
    assert (distance < 1e-12) == (average == "frechet")


@pytest.mark.parametrize("shape", [(64, 6), (4, 6, 5, 3), (2, 6, 4, 3, 5)])
@pytest.mark.parametrize("c", [0.1, 1.0, Curvature(0.7)])
def test_fused_float32_path_agrees_with_float64(shape: tuple[int, ...], c: float | Curvature) -> None:
    """Values, running statistics and gradients; in float64 the layer composes the manifold's own maps."""
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(shape, generator=generator) + 0.8
    weight = torch.randn(shape, generator=generator)
    bias = 0.3 * torch.randn(6, generator=generator)
    results = []
    for dtype in (torch.float32, torch.float64):
        layer = set_to(PoincareBatchNorm(6, c=copy.deepcopy(c)), 1.1, bias).to(dtype)
        x = u.to(dtype).requires_grad_()
        y = layer(x)
        leaves = (x, *layer.parameters())
        results.append((y, layer.running_mean, layer.running_var, *torch.autograd.grad((y * weight).sum(), leaves)))
    for single, double in zip(*results):
        scale = float(double.detach().abs().max())
        assert float((single.detach() - double.detach()).abs().max()) < 2e-5 * scale


@pytest.mark.parametrize("mode", ["frechet", "detached", "detached frechet", "eval"])
def test_fused_float32_path_agrees_with_float64_in_other_modes(mode: str) -> None:
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(4, 6, 5, 3, generator=generator) + 0.8
    weight = torch.randn(u.shape, generator=generator)
    average = "frechet" if "frechet" in mode else "midpoint"
    single = PoincareBatchNorm(6, c=Curvature(0.7), average=average, detach_stats="detached" in mode)
    set_to(single, 1.1, 0.3 * torch.randn(6, generator=generator))(u)
    results = []
    for layer in (single, copy.deepcopy(single).double()):
        layer.train(mode != "eval")
        x = u.to(layer.bias.dtype).requires_grad_()
        y = layer(x)
        results.append((y, *torch.autograd.grad((y * weight).sum(), (x, *layer.parameters()))))
    for found, exact in zip(*results):
        assert float((found - exact).detach().abs().max()) < 2e-5 * float(exact.detach().abs().max())


def test_fused_path_keeps_its_digits_far_from_the_origin() -> None:
    """A tight cloud at rho = 9: the span of point and mean is combined in float64, so the spread survives."""
    generator = torch.Generator().manual_seed(4)
    centre = torch.randn(6, generator=generator, dtype=torch.float64)
    centre = 4.5 * centre / centre.norm()
    cloud = maps.boost(centre, 0.2 * torch.randn(500, 6, generator=generator, dtype=torch.float64), 1.0, -1)
    layer = PoincareBatchNorm(6, c=1.0)
    reference = copy.deepcopy(layer).double()
    y, exact = layer(cloud.float()).detach(), reference(cloud.float().double()).detach()
    assert float((y - exact).norm(dim=1).max()) < 1e-2
    assert float((y - exact).norm(dim=1).mean()) < 1e-3
    close(layer.running_var, reference.running_var, 1e-3)


def test_points_beyond_the_chart_count_as_cut() -> None:
    """A float32 feature that is longer than its dtype resolves acts like the farthest point in its direction."""
    u = torch.randn(16, 6, 3, 3, generator=torch.Generator().manual_seed(5))
    weight = torch.randn(u.shape, generator=torch.Generator().manual_seed(6))
    results = []
    for length in (1e4, 0.5 * maps.largest_radius(torch.float32) * (1 + 1e-4)):
        x = u.clone()
        x[0, :, 0, 0] = length / 6**0.5
        x.requires_grad_()
        y = PoincareBatchNorm(6, c=1.0)(x)
        gradient = torch.autograd.grad((y * weight).sum(), x)[0]
        results.append((y, gradient[1:]))
        assert torch.isfinite(gradient).all()
    assert float(2 * results[0][0].detach().norm(dim=1).max()) < maps.largest_radius(torch.float32) * (1 + 1e-3)
    for far, cut in zip(*results):
        close(far, cut, 1e-4 * float(cut.detach().abs().max()))


def test_second_derivatives_of_the_fused_path_match() -> None:
    """A gradient penalty in float32 equals the one in float64."""
    u = 0.5 * torch.randn(12, 4)
    penalties = []
    for dtype in (torch.float32, torch.float64):
        layer = PoincareBatchNorm(4, c=0.6).to(dtype)
        x = u.to(dtype).requires_grad_()
        first = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)[0]
        penalties.append(torch.autograd.grad(first.square().sum(), x)[0])
    close(penalties[0], penalties[1], 1e-3 * float(penalties[1].abs().max()))


@pytest.mark.parametrize("average", ["midpoint", "frechet"])
def test_gradients(average: str) -> None:
    """At scattered and at repeated points, in the input, the parameters and a learned curvature."""
    layer = PoincareBatchNorm(
        2, c=Curvature(0.6, dtype=torch.float64), average=average, track_running_stats=False, dtype=torch.float64
    )
    names = list(dict(layer.named_parameters()))

    def run(*values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values)), values[len(names) :])

    x = torch.randn(5, 2, dtype=torch.float64)
    for u in (x, torch.stack([x[0], x[0], torch.zeros_like(x[0]), x[1]])):
        leaves = tuple(t.detach().clone().requires_grad_() for t in (*layer.parameters(), u))
        assert torch.autograd.gradcheck(run, leaves, atol=1e-6)


def test_running_statistics_and_recalibration() -> None:
    """Cumulative averages of the batches' statistics; eval then agrees with the batch where there is one batch."""
    u = torch.randn(30, 4, 3, 3) + 0.5
    model = nn.Sequential(PoincareBatchNorm(4, c=0.5), nn.Identity(), PoincareBatchNorm(4, c=0.5))
    trained = model(u)
    assert float(model[0].running_var) == pytest.approx(0.9 + 0.1 * float(_batch_variance(u, 0.5)), rel=1e-4)
    recalibrate(model, [u])
    assert model.training
    assert model[0].momentum == 0.1
    close(model.eval()(u), trained, 1e-4)
    recalibrate(model, [(u[:15], None), (u[15:], None)])
    assert int(model[0].num_batches_tracked) == 2
    assert not model.training
    expected = (_batch_variance(u[:15], 0.5) + _batch_variance(u[15:], 0.5)) / 2
    close(model[0].running_var, expected, 1e-4)
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate(model, [])


def _batch_variance(u: Tensor, c: float) -> Tensor:
    points, chart = u.movedim(1, -1).flatten(0, -2).double(), PoincareLogChart(c)
    return chart.dist2(chart.midpoint(points), points).mean()


def test_default_scale_and_module_manners() -> None:
    assert float(PoincareBatchNorm(16, c=0.01).weight.detach()) == 4
    assert float(PoincareBatchNorm(16, c=1.0).weight.detach()) == 1.5
    curvature = Curvature(0.2)
    layer = PoincareBatchNorm(3, c=curvature)
    u = torch.randn(6, 3, 2, 2)
    y = layer(u)
    y.square().sum().backward()
    assert float(curvature.theta.grad.abs()) > 0
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other.eval()(u), layer.eval()(u))
    twin = PoincareBatchNorm(3, c=Curvature(0.9)).eval()
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(u), layer(u))
    assert layer(u.bfloat16()).dtype == torch.bfloat16
    close(layer.double()(u.double()), layer.float()(u), 1e-5)


@pytest.mark.slow
def test_compiles_without_graph_breaks() -> None:
    layer = PoincareBatchNorm(4, c=0.5)
    gradients = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        u = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
        run(u).pow(3).sum().backward()
        gradients.append(u.grad)
    close(gradients[1], gradients[0], 1e-5)


def test_bad_input_is_explained() -> None:
    layer = PoincareBatchNorm(3)
    with pytest.raises(ValueError, match="3 channels on axis 1"):
        layer(torch.randn(4, 2, 5, 5))
    with pytest.raises(TypeError, match="float64"):
        layer(torch.randn(4, 3).double())
    with pytest.raises(ValueError, match="more than one point"):
        layer(torch.randn(1, 3))
    with pytest.raises(ValueError, match='average must be "midpoint" or "frechet", got \'mean\''):
        PoincareBatchNorm(3, average="mean")
    with pytest.raises(ValueError, match="form must be"):
        PoincareBatchNorm(3, form="lou")
    with pytest.raises(ValueError, match="c must be positive"):
        PoincareBatchNorm(3, c=0.0)
    bad = torch.randn(4, 3)
    bad[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"input\[2\] is not finite"):
        layer(bad)
