"""4-bit floating point: which values it holds, how it rounds, what it does with zeros, infinities and NaN."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from manifoldnorm.nn import functional
from manifoldnorm.nn.quantize import (
    FakeQuantizedLinear,
    fake_quantize_linears_,
    mxfp4_fake_quantize,
    nvfp4_fake_quantize,
    round_to_e2m1,
)
from manifoldnorm.nn.unit_norm import NormalizedLinear, normalize_weights_

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# The midpoint of each pair of neighbours, and the neighbour with an even last bit.
TIES = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
QUANTIZERS = pytest.mark.parametrize("quantize", [nvfp4_fake_quantize, mxfp4_fake_quantize])


def signal_to_noise(x: torch.Tensor, rounded: torch.Tensor) -> float:
    return 10 * torch.log10(x.double().square().sum() / (x.double() - rounded.double()).square().sum()).item()


def test_e2m1_keeps_its_values_and_rounds_ties_to_even() -> None:
    values = torch.tensor(E2M1 + [-v for v in E2M1])
    assert torch.equal(round_to_e2m1(values), values)
    at, expected = torch.tensor(TIES).unbind(1)
    assert torch.equal(round_to_e2m1(at), expected)
    assert torch.equal(round_to_e2m1(-at), -expected)


def test_e2m1_rounds_to_the_nearest_value() -> None:
    x = torch.linspace(-8, 8, 100_001)
    table = torch.tensor(sorted({*E2M1, *(-v for v in E2M1)}))
    distance = (x[:, None] - table).abs().amin(dim=1)
    assert torch.equal((round_to_e2m1(x) - x).abs(), distance)


def test_e2m1_just_beside_each_tie_goes_to_the_nearer_side() -> None:
    at = torch.tensor([tie for tie, _ in TIES])
    below = round_to_e2m1(torch.nextafter(at, torch.zeros_like(at)))
    above = round_to_e2m1(torch.nextafter(at, torch.full_like(at, 10.0)))
    assert torch.equal(below, torch.tensor(E2M1[:-1]))
    assert torch.equal(above, torch.tensor(E2M1[1:]))


def test_nvfp4_gives_multiples_of_the_block_scale() -> None:
    """Recomputed block by block in float64 from the definition of the format."""
    x = torch.randn(5, 48)
    result = nvfp4_fake_quantize(x)
    encode = 448 * 6 / x.abs().max().double()
    for row in range(5):
        for start in range(0, 48, 16):
            block = x[row, start : start + 16].double()
            scale = (block.abs().max() / 6 * encode).float().to(torch.float8_e4m3fn).double()
            table = torch.tensor(sorted({*E2M1, *(-v for v in E2M1)})).double() * scale / encode
            nearest = table[(block[:, None] - table).abs().argmin(dim=1)]
            torch.testing.assert_close(result[row, start : start + 16].double(), nearest, rtol=1e-6, atol=0)


@QUANTIZERS
def test_idempotent(quantize) -> None:
    once = quantize(torch.randn(64, 128))
    assert torch.equal(quantize(once), once)


@pytest.mark.parametrize(
    ("quantize", "decibels"),
    [
        (nvfp4_fake_quantize, 20.44),
        (functools.partial(nvfp4_fake_quantize, block=(16, 16)), 19.07),
        (mxfp4_fake_quantize, 18.77),
    ],
    ids=["nvfp4", "nvfp4 tiles", "mxfp4"],
)
def test_signal_to_noise_ratio_of_gaussian_data(quantize, decibels: float) -> None:
    x = torch.randn(1024, 1024)
    assert signal_to_noise(x, quantize(x)) == pytest.approx(decibels, abs=0.1)


@pytest.mark.parametrize("dim", [128, 2048])
def test_unit_vectors_may_use_amax_one(dim: int) -> None:
    x = nn.functional.normalize(torch.randn(512, dim), dim=-1)
    assert signal_to_noise(x, nvfp4_fake_quantize(x, amax=1.0)) == pytest.approx(20.4, abs=0.1)


def test_an_outlier_hurts_only_its_own_block() -> None:
    x = torch.randn(4096, 32)
    x[:, 0] *= 30
    rounded = nvfp4_fake_quantize(x)
    assert signal_to_noise(x[:, 16:], rounded[:, 16:]) == pytest.approx(20.4, abs=0.15)
    assert signal_to_noise(x[:, 1:16], rounded[:, 1:16]) < 6


@QUANTIZERS
def test_zeros_stay_zero_and_zero_blocks_do_not_disturb_others(quantize) -> None:
    assert torch.equal(quantize(torch.zeros(3, 64)), torch.zeros(3, 64))
    x = torch.randn(2, 96)
    x[:, 32:64] = 0
    rounded = quantize(x)
    assert torch.equal(rounded[:, 32:64], torch.zeros(2, 32))
    assert signal_to_noise(x[:, :32], rounded[:, :32]) > 15


@QUANTIZERS
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_an_infinity_or_nan_makes_its_block_nan_and_no_other(quantize, bad: float) -> None:
    x = torch.randn(2, 96)
    clean = quantize(x)
    x[1, 40] = bad
    expected_bad = torch.zeros(2, 96, dtype=torch.bool)
    if quantize is nvfp4_fake_quantize:
        expected_bad[1, 32:48] = True
        x_without = x.clone()
        x_without[1, 40] = 0
        clean = quantize(x_without)
    else:
        expected_bad[1, 32:64] = True
    rounded = quantize(x)
    assert torch.equal(rounded.isnan(), expected_bad)
    assert torch.equal(rounded[~expected_bad], clean[~expected_bad])


@QUANTIZERS
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e30, 3e38])
def test_tiny_and_huge_tensors_stay_finite(quantize, size: float) -> None:
    x = torch.rand(4, 64) * size
    rounded = quantize(x)
    assert rounded.isfinite().all()
    if size > 1e-35:
        assert ((rounded - x).abs().amax() <= 0.3 * size).all()


def test_values_above_a_given_amax_saturate() -> None:
    x = torch.zeros(1, 16)
    x[0, 0] = 50.0
    assert nvfp4_fake_quantize(x, amax=1.0)[0, 0] == pytest.approx(1.0)


@QUANTIZERS
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 40), (0, 16), (4, 0)])
def test_any_shape_and_incomplete_blocks(quantize, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert quantize(x).shape == x.shape
    wide = nn.functional.pad(x, (0, -x.shape[-1] % 32)) if x.numel() else x
    assert torch.equal(quantize(x), quantize(wide)[..., : x.shape[-1]])


@QUANTIZERS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_rounded_in_float32_and_returned(quantize, dtype: torch.dtype) -> None:
    x = torch.randn(4, 64).to(dtype)
    assert quantize(x).dtype == dtype
    torch.testing.assert_close(quantize(x), quantize(x.float()).to(dtype), rtol=0, atol=0)


@QUANTIZERS
def test_gradient_passes_straight_through(quantize) -> None:
    x = torch.randn(3, 48, requires_grad=True)
    upstream = torch.randn(3, 48)
    (gradient,) = torch.autograd.grad(quantize(x), x, upstream)
    assert torch.equal(gradient, upstream)


@QUANTIZERS
def test_vmap_treats_each_sample_as_its_own_tensor(quantize) -> None:
    x = torch.randn(3, 4, 32) * torch.tensor([1.0, 100.0, 1e-3])[:, None, None]
    assert torch.equal(torch.func.vmap(quantize)(x), torch.stack([quantize(sample) for sample in x]))


@pytest.mark.slow
@QUANTIZERS
def test_compiles_without_a_graph_break(quantize) -> None:
    x = torch.randn(8, 64)
    torch.testing.assert_close(torch.compile(quantize, fullgraph=True)(x), quantize(x), rtol=1e-6, atol=0)


def test_the_functions_are_among_the_stateless_layers() -> None:
    assert functional.nvfp4_fake_quantize is nvfp4_fake_quantize
    assert functional.mxfp4_fake_quantize is mxfp4_fake_quantize


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"tensor, got torch\.int64"):
        nvfp4_fake_quantize(torch.ones(16, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"complex64"):
        mxfp4_fake_quantize(torch.ones(16, dtype=torch.complex64))
    with pytest.raises(ValueError, match="scalar"):
        nvfp4_fake_quantize(torch.tensor(1.0))
    with pytest.raises(ValueError, match="block"):
        nvfp4_fake_quantize(torch.ones(16), block=(0, 16))
    for amax in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="amax"):
            nvfp4_fake_quantize(torch.ones(16), amax=amax)


class SharedAndTied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.again = self.first
        self.last = nn.Linear(32, 4)
        self.last.weight = nn.Parameter(self.last.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(self.first(x)))


def test_one_call_replaces_every_linear_and_keeps_parameters_and_state_dict() -> None:
    model = SharedAndTied()
    keys, parameters = set(model.state_dict()), {id(p) for p in model.parameters()}
    plain = copy.deepcopy(model)
    assert fake_quantize_linears_(model) == ["first", "last"]
    assert model.first is model.again
    assert isinstance(model.first, FakeQuantizedLinear)
    assert set(model.state_dict()) == keys
    assert {id(p) for p in model.parameters()} == parameters
    x = torch.randn(5, 32)

    def rounded(layer: nn.Linear, value: torch.Tensor) -> torch.Tensor:
        return nvfp4_fake_quantize(value) @ nvfp4_fake_quantize(layer.weight).mT + layer.bias

    expected = rounded(plain.last, rounded(plain.first, rounded(plain.first, x)))
    torch.testing.assert_close(model(x), expected)
    plain.load_state_dict(model.state_dict())


def test_only_one_side_or_only_some_layers() -> None:
    x = torch.randn(5, 32)
    weights_only = nn.Sequential(nn.Linear(32, 8))
    plain = copy.deepcopy(weights_only)
    fake_quantize_linears_(weights_only, activation=None, weight=mxfp4_fake_quantize)
    expected = x @ mxfp4_fake_quantize(plain[0].weight).mT + plain[0].bias
    torch.testing.assert_close(weights_only(x), expected)
    two = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    assert fake_quantize_linears_(two, skip=["1"]) == ["0"]
    assert type(two[1]) is nn.Linear


def test_quantised_model_trains_copies_and_pickles() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    fake_quantize_linears_(model)
    x, target = torch.randn(256, 32), torch.randn(256, 1) * 0.1 + 1
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


def test_normalised_layers_stay_normalisable() -> None:
    model = nn.Sequential(NormalizedLinear(32, 16, unit_norm_dim=1), NormalizedLinear(16, 32, unit_norm_dim=0))
    fake_quantize_linears_(model, weight=functools.partial(nvfp4_fake_quantize, amax=1.0))
    for layer in model:
        layer.weight.data.mul_(3)
    normalize_weights_(model)
    torch.testing.assert_close(model[0].weight.norm(dim=1), torch.ones(16))
    torch.testing.assert_close(model[1].weight.norm(dim=0), torch.ones(16))


class OwnForward(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_layers_that_would_escape_are_errors() -> None:
    with pytest.raises(TypeError, match="wrap it"):
        fake_quantize_linears_(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="MultiheadAttention"):
        fake_quantize_linears_(nn.Sequential(nn.MultiheadAttention(16, 2)))
    with pytest.raises(TypeError, match=r"'0' is a OwnForward with its own forward"):
        fake_quantize_linears_(nn.Sequential(OwnForward(2, 2)))
    parametrised = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)))
    with pytest.raises(TypeError, match="parametrised"):
        fake_quantize_linears_(parametrised)
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda module, args, output: output)
    with pytest.raises(TypeError, match="hooks"):
        fake_quantize_linears_(hooked)
    with pytest.raises(ValueError, match=r"skip.*\['9'\]"):
        fake_quantize_linears_(nn.Sequential(nn.Linear(2, 2)), skip=["9"])
    with pytest.raises(ValueError, match="at least one linear layer"):
        fake_quantize_linears_(nn.Sequential(nn.ReLU()))
