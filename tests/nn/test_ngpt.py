"""nGPT: the paper's formulas recomputed, unit norms after every step, masks, caches, and what users of others hit."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.nn import ngpt
from manifoldnorm.nn.attention import KeyValueCache
from manifoldnorm.nn.functional import sphere_residual
from manifoldnorm.nn.ngpt import (
    NGPT,
    LearnedScale,
    NGPTBlock,
    NGPTConfig,
    NormalizedEmbedding,
    NormalizedLinear,
    normalize_weights_,
    register_weight_normalization,
    unit_norm,
)

CONFIG = NGPTConfig(vocab_size=23, dim=16, layers=2, heads=4, context=12)
GROUPED = NGPTConfig(vocab_size=23, dim=16, layers=2, heads=4, key_value_heads=2, hidden=24, context=12)


def perturbed(config: NGPTConfig) -> NGPT:
    """A double-precision model whose scales differ from their initial values, some rates being negative."""
    torch.manual_seed(3)
    model = NGPT(config).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LearnedScale):
                module.stored.add_(0.2 * torch.randn_like(module.stored))
    return model


def paper_logits(model: NGPT, tokens: Tensor) -> Tensor:
    """The paper's equations for one sequence, written out with loops; weights are read from the model."""
    config = model.config
    d, heads = config.dim, config.heads
    key_heads = config.key_value_heads or heads
    size, base = d // heads, d**-0.5

    def norm(x: Tensor) -> Tensor:
        return x / (x * x).sum(-1, keepdim=True).sqrt()

    def rope(x: Tensor, position: int) -> Tensor:
        rotated = x.clone()
        for i in range(size // 2):
            angle = position * config.rotary_base ** (-2 * i / size)
            a, b = x[i], x[i + size // 2]
            rotated[i] = a * math.cos(angle) - b * math.sin(angle)
            rotated[i + size // 2] = a * math.sin(angle) + b * math.cos(angle)
        return rotated

    h = [model.embedding.weight[token] for token in tokens]
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        s_qk = (attention.s_qk.stored * (1.0 / base)).view(heads, size)
        alpha_a = (block.alpha_attention.stored * (config.alpha / base)).abs()
        alpha_m = (block.alpha_mlp.stored * (config.alpha / base)).abs()
        outputs = []
        for i in range(len(h)):
            heads_out = []
            for head in range(heads):
                group = head // (heads // key_heads)
                rows, key_rows = slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)
                q = s_qk[head] * norm(rope(attention.query.weight[rows] @ h[i], i))
                logits, values = [], []
                for j in range(i + 1):
                    k = s_qk[head] * norm(rope(attention.key.weight[key_rows] @ h[j], j))
                    logits.append(math.sqrt(size) * (q @ k))
                    values.append(attention.value.weight[key_rows] @ h[j])
                weights = torch.softmax(torch.stack(logits), 0)
                heads_out.append(sum(w * v for w, v in zip(weights, values)))
            outputs.append(norm(attention.output.weight @ torch.cat(heads_out)))
        h = [norm(x + alpha_a * (a - x)) for x, a in zip(h, outputs)]
        outputs = []
        for x in h:
            u = mlp.s_u.stored * (mlp.up.weight @ x)
            v = mlp.s_v.stored * math.sqrt(d) * (mlp.gate.weight @ x)
            outputs.append(norm(mlp.output.weight @ (u * v * torch.sigmoid(v))))
        h = [norm(x + alpha_m * (m - x)) for x, m in zip(h, outputs)]
    s_z = model.readout.s_z.stored * (1.0 / base)
    return torch.stack([s_z * (model.readout.output.weight @ x) for x in h])


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["heads", "grouped queries"])
def test_logits_are_those_of_the_papers_formulas(config: NGPTConfig) -> None:
    model = perturbed(config)
    tokens = torch.randint(config.vocab_size, (1, 7))
    torch.testing.assert_close(model(tokens)[0], paper_logits(model, tokens[0]), rtol=1e-11, atol=1e-12)


def test_gradients_are_those_of_the_papers_formulas() -> None:
    model = perturbed(CONFIG)
    tokens = torch.randint(CONFIG.vocab_size, (1, 5))
    upstream = torch.randn(5, CONFIG.vocab_size, dtype=torch.float64)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((model(tokens)[0] * upstream).sum(), parameters)
    theirs = torch.autograd.grad((paper_logits(model, tokens[0]) * upstream).sum(), parameters)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_initial_effective_values_and_their_learning_rates() -> None:
    model = NGPT(NGPTConfig(vocab_size=23, dim=64, layers=1, heads=4))
    block = model.blocks[0]
    table = {
        block.alpha_attention: (0.05, 64**-0.5),
        block.alpha_mlp: (0.05, 64**-0.5),
        block.attention.s_qk: (1.0, 64**-0.5),
        block.mlp.s_u: (1.0, 1.0),
        block.mlp.s_v: (1.0, 1.0),
        model.readout.s_z: (1.0, 64**-0.5),
    }
    for scale, (initial, stored) in table.items():
        torch.testing.assert_close(scale().detach(), torch.full_like(scale(), initial))
        torch.testing.assert_close(scale.stored.detach(), torch.full_like(scale.stored, stored))
    assert block.attention.s_qk.stored.shape == (64,)
    assert block.mlp.s_u.stored.shape == (256,)


def constrained_norms(model: nn.Module) -> list[Tensor]:
    """Norms along the axis of length dim: rows where the stream comes in, columns where it goes out."""
    norms = []
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            out_to_stream = name.endswith(("attention.output.weight", "mlp.output.weight"))
            norms.append(weight.norm(dim=0 if out_to_stream else 1))
    return norms


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, torch.optim.SGD], ids=["Adam", "SGD"])
def test_every_constrained_vector_has_unit_norm_at_the_start_and_after_a_step(optimizer_class) -> None:
    model = NGPT(GROUPED)
    assert len(constrained_norms(model)) == 2 + 2 * 7
    for norms in constrained_norms(model):
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)
    optimizer = optimizer_class(model.parameters(), lr=0.3)
    register_weight_normalization(optimizer, model)
    before = [p.detach().clone() for p in model.parameters()]
    tokens = torch.randint(23, (4, 12))
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    optimizer.step()
    for norms in constrained_norms(model):
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_the_hook_can_be_removed_and_its_optimizer_pickled() -> None:
    layer = NormalizedLinear(4, 3, unit_norm_dim=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    handle = register_weight_normalization(optimizer, layer)
    pickle.loads(pickle.dumps(optimizer))
    handle.remove()
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    assert (layer.weight.norm(dim=1) - 1).abs().min() > 1e-3


def test_registering_normalises_weights_that_were_loaded_unnormalised() -> None:
    layer = NormalizedLinear(4, 3, unit_norm_dim=0)
    layer.load_state_dict(nn.Linear(4, 3, bias=False).state_dict())
    register_weight_normalization(torch.optim.SGD(layer.parameters(), lr=1.0), layer)
    torch.testing.assert_close(layer.weight.norm(dim=0), torch.ones(4))


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["heads", "grouped queries"])
def test_the_stream_is_on_the_unit_sphere_throughout(config: NGPTConfig) -> None:
    streams = NGPT(config).streams(torch.randint(23, (3, 12)), loops=3)
    assert len(streams) == 4
    for stream in streams:
        torch.testing.assert_close(stream.norm(dim=-1), torch.ones(3, 12), rtol=0, atol=1e-6)


def test_a_scalar_rate_is_the_projection_retraction() -> None:
    x, y = (unit_norm(torch.randn(50, 8, dtype=torch.float64)) for _ in range(2))
    alpha = torch.rand(50, 1, dtype=torch.float64) / 2
    cosine = (x * y).sum(-1, keepdim=True)
    step = (alpha / (1 - alpha + alpha * cosine)).squeeze(-1)
    ours = sphere_residual(x, y, p=1.0, radius=1.0, step=step)
    torch.testing.assert_close(unit_norm(x + alpha * (y - x)), ours, rtol=0, atol=1e-14)


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["heads", "grouped queries"])
@pytest.mark.parametrize("loops", [1, 3])
def test_cached_logits_equal_full_recomputation(config: NGPTConfig, loops: int) -> None:
    model = perturbed(config)
    tokens = torch.randint(23, (2, 12))
    full = model(tokens, loops=loops)
    caches = model.new_caches(loops=loops)
    pieces = [model(piece, loops=loops, caches=caches) for piece in tokens.split([5, 1, 1, 4, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, rtol=1e-11, atol=1e-12)


def test_generation_is_greedy_recomputation_and_seeded() -> None:
    model = perturbed(CONFIG)
    start = torch.randint(23, (2, 3))
    expected = start
    for _ in range(9):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(model.generate(start, 9, temperature=0), expected)
    samples = [model.generate(start, 9, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert torch.equal(samples[0][:, :3], start)


def test_no_token_sees_a_later_one() -> None:
    model = perturbed(CONFIG)
    tokens = torch.randint(23, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 23
    torch.testing.assert_close(model(tokens)[:, :8], model(changed)[:, :8], rtol=0, atol=0)
    assert not torch.allclose(model(tokens)[:, 8:], model(changed)[:, 8:])


def test_left_padding_changes_nothing_but_positions_and_masked_rows_stay_finite() -> None:
    """Rotary angles depend on differences only while s_qk is constant, as it is at the start."""
    model = NGPT(CONFIG).double()
    tokens = torch.randint(23, (2, 8))
    padded = torch.cat([torch.zeros(2, 4, dtype=torch.int64), tokens], dim=1)
    mask = torch.arange(12).expand(2, 12) >= 4
    logits = model(padded, mask=mask)
    torch.testing.assert_close(logits[:, 4:], model(tokens), rtol=1e-10, atol=1e-11)
    assert logits.isfinite().all()


def test_a_fully_masked_row_gives_finite_values_and_gradients() -> None:
    model = NGPT(CONFIG)
    tokens = torch.randint(23, (2, 6))
    mask = torch.tensor([[True] * 6, [False] * 6])
    logits = model(tokens, mask=mask)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert torch.equal(model.blocks[0].attention(model.embedding(tokens), mask=mask)[1], torch.zeros(6, 16))


def test_a_zero_output_projection_gives_finite_gradients() -> None:
    """A zero vector has no direction: the update is zero, not NaN, and the projection can leave zero."""
    model = NGPT(CONFIG)
    for block in model.blocks:
        nn.init.zeros_(block.attention.output.weight)
    tokens = torch.randint(23, (2, 6))
    model(tokens).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.blocks[0].attention.output.weight.grad.abs().max() > 0


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e-6, 1e15, 1e25, 1e38])
def test_unit_norm_of_any_size_is_finite(size: float) -> None:
    """Squares of float32 numbers overflow from 1e19 on, and vanish below 1e-23."""
    x = (size * torch.ones(2, 4)).requires_grad_()
    y = unit_norm(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.isfinite().all()
    torch.testing.assert_close(y, torch.full_like(y, 0.5 if size else 0.0))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_unit_norm_of_a_bad_row_is_nan_in_that_row_alone(bad: float) -> None:
    x = torch.randn(3, 4)
    x[1, 2] = bad
    x.requires_grad_()
    y = unit_norm(x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[::2].norm(dim=-1), torch.ones(2))
    y[::2].sum().backward()
    assert x.grad[::2].isfinite().all()


def test_unit_norm_in_half_precision_does_not_overflow() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.full((2, 4), 30000.0, dtype=dtype)
        assert unit_norm(x).dtype == dtype
        torch.testing.assert_close(unit_norm(x), torch.full_like(x, 0.5))


def test_a_negative_stored_rate_acts_as_its_absolute_value() -> None:
    block = NGPTBlock(16, 4)
    stream = unit_norm(torch.randn(1, 5, 16))
    before = block(stream)
    with torch.no_grad():
        block.alpha_attention.stored.neg_()
        block.alpha_mlp.stored.neg_()
    torch.testing.assert_close(block(stream), before)


def test_a_block_serves_another_model_with_and_without_given_angles() -> None:
    model = perturbed(CONFIG)
    tokens = torch.randint(23, (2, 9))
    stream = model.embedding(tokens)
    for block in model.blocks:
        stream = block(stream)
    torch.testing.assert_close(stream, model.streams(tokens)[-1])
    cache = KeyValueCache()
    block = model.blocks[0]
    start = model.embedding(tokens)
    pieces = [block(piece, cache=cache) for piece in start.split([4, 5], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), block(start))


def test_layers_load_the_state_of_plain_ones() -> None:
    plain = nn.Linear(8, 6, bias=False)
    layer = NormalizedLinear(8, 6, unit_norm_dim=1)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), plain(x))
    assert list(layer.state_dict()) == ["weight"]
    embedding = nn.Embedding(5, 8)
    normalized = NormalizedEmbedding(5, 8)
    normalized.load_state_dict(embedding.state_dict())
    assert torch.equal(normalized.weight, embedding.weight)


def test_state_dict_deepcopy_and_pickle_keep_the_model() -> None:
    model = NGPT(GROUPED)
    tokens = torch.randint(23, (2, 6))
    other = NGPT(GROUPED)
    other.load_state_dict(model.state_dict())
    for copied in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(tokens), model(tokens))
        normalize_weights_(copied)
        torch.testing.assert_close(copied(tokens), model(tokens))


def test_autocast_keeps_the_stream_in_float32_and_near_the_full_precision_result() -> None:
    model = NGPT(CONFIG)
    tokens = torch.randint(23, (2, 12))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        streams = model.streams(tokens)
        logits = model(tokens)
    assert streams[-1].dtype == torch.float32
    torch.testing.assert_close(streams[-1].norm(dim=-1), torch.ones(2, 12), rtol=0, atol=1e-6)
    torch.testing.assert_close(logits.float(), model(tokens), rtol=0.1, atol=0.05)


@pytest.mark.slow
def test_compiles_without_a_graph_break_and_gives_the_same_gradients() -> None:
    model = NGPT(CONFIG)
    tokens = torch.randint(23, (2, 12))
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(compiled(tokens).square().sum(), parameters)
    theirs = torch.autograd.grad(model(tokens).square().sum(), parameters)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_cuda_gives_the_same_logits() -> None:
    model = perturbed(CONFIG)
    tokens = torch.randint(23, (2, 12))
    torch.testing.assert_close(copy.deepcopy(model).cuda()(tokens.cuda()).cpu(), model(tokens), rtol=1e-9, atol=1e-10)


def test_bad_input_is_refused() -> None:
    model = NGPT(CONFIG)
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"0 cached \+ 13 new positions exceed the context of 12"):
        model(torch.zeros(1, 13, dtype=torch.int64))
    caches = model.new_caches()
    model(torch.zeros(1, 10, dtype=torch.int64), caches=caches)
    with pytest.raises(ValueError, match=r"10 cached \+ 5 new"):
        model(tokens, caches=caches)
    with pytest.raises(ValueError, match="batch of 1"):
        model(torch.zeros(2, 1, dtype=torch.int64), caches=caches)
    with pytest.raises(ValueError, match="caches: expected 4"):
        model(tokens, loops=2, caches=model.new_caches())
    with pytest.raises(TypeError, match="integer tensor"):
        model(torch.zeros(1, 5))
    with pytest.raises(ValueError, match=r"\(batch, length\)"):
        model(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="length >= 1"):
        model(torch.zeros(2, 0, dtype=torch.int64))
    for token in (-1, 23):
        with pytest.raises(ValueError, match=f"tokens: expected numbers from 0 to 22, .* got {token}"):
            model(torch.tensor([[0, token]]))
    with pytest.raises(ValueError, match="loops"):
        model(tokens, loops=0)
    with pytest.raises(TypeError, match="boolean"):
        model(tokens, mask=torch.ones(1, 5))
    with pytest.raises(ValueError, match=r"mask: expected shape \(batch, keys\) = \(1, 5\)"):
        model(tokens, mask=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="exceed the context"):
        model.generate(tokens, 8)
    with pytest.raises(ValueError, match="temperature"):
        model.generate(tokens, 1, temperature=-1.0)
    with pytest.raises(ValueError, match="new_tokens"):
        model.generate(tokens, -1)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (NGPTConfig(10, dim=16, heads=3), "heads"),
        (NGPTConfig(10, dim=0, heads=4), "heads: expected a divisor of dim = 0"),
        (NGPTConfig(10, dim=12, heads=4), "even size"),
        (NGPTConfig(10, dim=16, heads=4, key_value_heads=3), "key_value_heads"),
        (NGPTConfig(10, dim=16, heads=4, layers=0), "layers"),
        (NGPTConfig(10, dim=16, heads=4, context=0), "context"),
        (NGPTConfig(10, dim=16, heads=4, loops=0), "loops"),
        (NGPTConfig(0, dim=16, heads=4), "vocab_size"),
        (NGPTConfig(10, dim=16, heads=4, alpha=0.0), "initial"),
    ],
)
def test_bad_sizes_are_refused(config: NGPTConfig, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NGPT(config)


def test_public_names_are_in_one_place() -> None:
    for name in ngpt.__all__:
        assert hasattr(ngpt, name)
    with pytest.raises(ValueError, match="unit_norm_dim"):
        NormalizedLinear(2, 2, unit_norm_dim=2)
