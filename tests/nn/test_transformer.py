"""The pre-norm baseline is the textbook one; the spherical and looped models differ from it only as they say."""

import copy
import math
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.nn.attention import causal_attention
from manifoldnorm.nn.decoder import stream_norm_penalty
from manifoldnorm.nn.functional import sphere_residual
from manifoldnorm.nn.ngpt import NGPTBlock
from manifoldnorm.nn.transformer import SphereBlock, Transformer, TransformerConfig

CONFIG = TransformerConfig(vocab_size=23, dim=16, layers=2, heads=4, context=12)
RESIDUALS = ["prenorm", "geonorm", "proj", "cayley", 4.0, "ngpt"]


def with_residual(residual: object) -> TransformerConfig:
    return replace(CONFIG, residual=residual)  # type: ignore[arg-type]


def textbook_attention(block: nn.Module, x: Tensor) -> Tensor:
    """Softmax attention of one sequence, written out with loops; rotations as complex products."""
    attention = block.attention
    heads, size = attention.heads, attention.head_dim
    length = x.shape[0]
    half = size // 2
    angle = torch.arange(length, dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) * 2 / size)
    turn = torch.polar(torch.ones_like(angle), angle)

    def rope(y: Tensor) -> Tensor:
        turned = torch.complex(y[:, :half], y[:, half:]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    outputs = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k = rope(x @ attention.query.weight[rows].T), rope(x @ attention.key.weight[rows].T)
        v = x @ attention.value.weight[rows].T
        outputs.append(
            torch.stack([torch.softmax(q[i] @ k[: i + 1].T / size**0.5, -1) @ v[: i + 1] for i in range(length)])
        )
    return torch.cat(outputs, dim=-1) @ attention.output.weight.T


def textbook_mlp(block: nn.Module, x: Tensor) -> Tensor:
    gate = x @ block.mlp.gate.weight.T
    return ((x @ block.mlp.up.weight.T) * gate * torch.sigmoid(gate)) @ block.mlp.output.weight.T


def rms(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * weight


def double_model(config: TransformerConfig) -> Transformer:
    torch.manual_seed(5)
    model = Transformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.2 * torch.rand_like(parameter))
    return model


def test_the_baseline_adds_each_sublayer_of_the_normalised_stream_to_the_stream_itself() -> None:
    """A published baseline computed norm(x) + f(norm(x)), which discards the stream and loses to anything."""
    model = double_model(CONFIG)
    tokens = torch.randint(23, (1, 9))
    x = rms(model.embedding[0].weight[tokens[0]])
    for block in model.blocks:
        x = x + textbook_attention(block, rms(x, block.attention_norm.weight))
        x = x + textbook_mlp(block, rms(x, block.mlp_norm.weight))
    norm, output = model.readout
    expected = rms(x, norm.weight) @ output.weight.T
    torch.testing.assert_close(model(tokens)[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("residual", "p"), [("proj", 1.0), ("cayley", 2.0), (4.0, 4.0), ("geonorm", math.inf)])
@pytest.mark.parametrize("normalize_update", [True, False])
def test_spherical_models_turn_the_stream_by_the_sublayers_of_the_stream(residual, p: float, normalize_update) -> None:
    model = double_model(replace(with_residual(residual), normalize_update=normalize_update))
    tokens = torch.randint(23, (1, 9))
    x = rms(model.embedding[0].weight[tokens[0]])
    for block in model.blocks:
        for sublayer, residual_layer in (
            (textbook_attention, block.attention_residual),
            (textbook_mlp, block.mlp_residual),
        ):
            step = F.softplus(residual_layer.raw_step)
            update = rms(sublayer(block, x)) if normalize_update else sublayer(block, x)
            x = sphere_residual(x, update, p=p, step=step)
    torch.testing.assert_close(model.streams(tokens)[-1][0], x, rtol=1e-9, atol=1e-9)


def test_default_step_is_one_over_sqrt_of_the_number_of_updates() -> None:
    looped = Transformer(replace(with_residual("proj"), loops=4))
    for block in looped.blocks:
        assert isinstance(block, SphereBlock)
        for residual in (block.attention_residual, block.mlp_residual):
            step = residual.step
            assert isinstance(step, Tensor)
            assert step.item() == pytest.approx((2 * 2 * 4) ** -0.5)


def test_schemes_differ_in_parameters_by_less_than_their_vectors() -> None:
    counts = {
        residual: sum(p.numel() for p in Transformer(replace(with_residual(residual), dim=64)).parameters())
        for residual in RESIDUALS
    }
    for residual, count in counts.items():
        assert abs(count - counts["prenorm"]) < 0.02 * counts["prenorm"], residual


@pytest.mark.parametrize("residual", ["proj", "cayley", 4.0, "geonorm", 0.5])
def test_a_spherical_stream_keeps_its_norm_at_every_loop(residual) -> None:
    model = Transformer(with_residual(residual))
    for stream in model.streams(torch.randint(23, (3, 12)), loops=8):
        torch.testing.assert_close(stream.norm(dim=-1), torch.full((3, 12), 4.0), rtol=2e-6, atol=0)


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("key_value_heads", [None, 2])
def test_cached_logits_equal_full_recomputation(residual, key_value_heads: int | None) -> None:
    model = double_model(replace(with_residual(residual), key_value_heads=key_value_heads, loops=2))
    tokens = torch.randint(23, (2, 12))
    caches = model.new_caches()
    pieces = [model(piece, caches=caches) for piece in tokens.split([3, 1, 1, 6, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_padding_and_fully_masked_rows(residual) -> None:
    model = Transformer(with_residual(residual)).double()
    tokens = torch.randint(23, (2, 8))
    padded = torch.cat([torch.zeros(2, 4, dtype=torch.int64), tokens], dim=1)
    mask = torch.arange(12).expand(2, 12) >= 4
    torch.testing.assert_close(model(padded, mask=mask)[:, 4:], model(tokens), rtol=1e-9, atol=1e-10)
    mask = mask.clone()
    mask[1] = False
    model(padded, mask=mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_grouped_queries_are_attention_with_repeated_keys() -> None:
    query, key, value = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 6)
    result = causal_attention(query, key, value, scale=0.7)
    for head in range(4):
        for i in range(5):
            keys = slice(0, i + 3)  # the queries are the last five of seven positions
            weights = torch.softmax(0.7 * key[:, head // 2, keys] @ query[:, head, i, :, None], dim=1)
            expected = (weights * value[:, head // 2, keys]).sum(1)
            torch.testing.assert_close(result[:, head, i], expected)


@pytest.mark.parametrize("residual", RESIDUALS)
def test_loops_apply_the_same_stack_again(residual) -> None:
    model = Transformer(with_residual(residual))
    tokens = torch.randint(23, (2, 9))
    streams = model.streams(tokens, loops=3)
    stream = streams[0]
    for expected in streams[1:]:
        for block in model.blocks:
            stream = block(stream)
        torch.testing.assert_close(stream, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(tokens, loops=3), model.readout(streams[-1]))


def test_loop_decay_shortens_the_turns() -> None:
    plain = Transformer(replace(with_residual("proj"), loops=4))
    decayed = Transformer(replace(with_residual("proj"), loops=4, loop_decay="harmonic"))
    decayed.load_state_dict(plain.state_dict())
    tokens = torch.randint(23, (2, 9))

    def turns(model: Transformer) -> list[float]:
        streams = model.streams(tokens)
        return [(a - b).norm().item() for a, b in pairwise(streams)]

    assert turns(decayed)[0] == pytest.approx(turns(plain)[0])
    assert turns(decayed)[3] < 0.5 * turns(plain)[3]


def test_only_the_raw_readout_sees_the_norm_of_the_stream() -> None:
    tokens = torch.randint(23, (2, 9))
    blind, seeing = Transformer(CONFIG), Transformer(replace(CONFIG, readout="raw"))
    stream = blind.streams(tokens)[-1].detach()
    torch.testing.assert_close(blind.readout(3 * stream), blind.readout(stream), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seeing.readout(3 * stream), 3 * seeing.readout(stream))
    # Behind a scale-invariant readout the loss has no derivative along the stream: the blind spot.
    stream.requires_grad_()
    (gradient,) = torch.autograd.grad(blind.readout(stream).square().sum(), stream)
    radial = (gradient * stream).sum(-1).abs() / (gradient.norm(dim=-1) * stream.norm(dim=-1))
    assert radial.max() < 1e-4


def test_normalising_between_loops_resets_the_norm() -> None:
    model = Transformer(replace(CONFIG, loops=3, normalize_between_loops=True))
    for stream in model.streams(torch.randint(23, (2, 9))):
        torch.testing.assert_close(stream.norm(dim=-1), torch.full((2, 9), 4.0))


def test_norm_penalty_is_zero_on_the_sphere_and_has_a_finite_gradient_at_zero() -> None:
    sphere = Transformer(with_residual("proj")).streams(torch.randint(23, (2, 9)))
    assert stream_norm_penalty(sphere) < 1e-10
    zero = torch.zeros(2, 3, 4, requires_grad=True)
    stream_norm_penalty([zero]).backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()
    with pytest.raises(ValueError, match="at least one"):
        stream_norm_penalty([])


@pytest.mark.parametrize("residual", RESIDUALS)
def test_state_dict_deepcopy_pickle_and_eval(residual) -> None:
    model = Transformer(with_residual(residual))
    tokens = torch.randint(23, (2, 9))
    other = Transformer(with_residual(residual))
    other.load_state_dict(model.state_dict())
    for copied in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.eval()):
        assert torch.equal(copied(tokens), model(tokens))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_autocast_is_near_full_precision(residual) -> None:
    model = Transformer(with_residual(residual))
    tokens = torch.randint(23, (2, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens).float()
    logits.sum().backward()
    torch.testing.assert_close(logits, model(tokens), rtol=0.1, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["prenorm", "cayley", "geonorm"])
def test_compiles_without_a_graph_break(residual) -> None:
    model = Transformer(with_residual(residual))
    tokens = torch.randint(23, (2, 9))
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(tokens), model(tokens), rtol=1e-4, atol=1e-4)


def test_ngpt_scheme_uses_the_same_blocks_as_the_model_of_that_name() -> None:
    model = Transformer(with_residual("ngpt"))
    assert all(isinstance(block, NGPTBlock) for block in model.blocks)
    torch.testing.assert_close(model.blocks[0].alpha_mlp().detach(), torch.full((16,), 0.5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"residual": "postnorm"}, "postnorm"),
        ({"residual": -1.0}, "p"),
        ({"residual": 0.0}, "p"),
        ({"residual": "proj", "normalize_embedding": False}, "normalize_embedding"),
        ({"residual": "ngpt", "readout": "raw"}, "readout"),
        ({"readout": "linear"}, "readout"),
        ({"step_decay": "sqrt"}, "step_decay"),
        ({"normalize_update": False}, "normalize_update"),
        ({"residual": "ngpt", "loop_decay": "sqrt"}, "loop_decay"),
        ({"alpha": 0.1}, "alpha"),
        ({"layers": 0}, "layers"),
        ({"heads": 5}, "heads"),
        ({"heads": 16}, "even size"),
        ({"key_value_heads": 3}, "key_value_heads"),
        ({"context": 0}, "context"),
        ({"loops": 0}, "loops"),
    ],
)
def test_bad_configurations_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Transformer(replace(CONFIG, **change))
