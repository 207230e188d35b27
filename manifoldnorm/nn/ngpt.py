"""nGPT: a transformer whose states and weight vectors all lie on the unit sphere (Loshchilov et al., arXiv 2410.01131).

No layer norms, no biases, no weight decay, no warm-up. Every matrix is normalised along its axis of length `dim` after
each optimizer step (`normalize_weights_`, `register_weight_normalization`), every block moves the stream towards its
normalised output by an elementwise learned rate, and four learned scales restore what normalising removes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.nn.attention import (
    KeyValueCache,
    causal_attention,
    check_heads,
    merge_heads,
    rotary_table_after,
    rotate,
    split_heads,
)
from manifoldnorm.nn.decoder import Decoder
from manifoldnorm.nn.unit_norm import (
    NormalizedEmbedding,
    NormalizedLinear,
    normalize_weights_,
    register_weight_normalization,
    unit_norm,
)

__all__ = [
    "NGPT",
    "NGPTMLP",
    "LearnedScale",
    "NGPTAttention",
    "NGPTBlock",
    "NGPTConfig",
    "NGPTReadout",
    "NormalizedEmbedding",
    "NormalizedLinear",
    "normalize_weights_",
    "register_weight_normalization",
    "unit_norm",
]


class LearnedScale(nn.Module):
    """A learned vector whose optimizer step is rescaled: effective value = stored * initial / scale.

    The stored parameter starts at `scale`, so a step of size lr on it moves the effective value by
    lr * initial / scale: the paper's "eigen learning rate" for alpha, and likewise for s_qk, s_u, s_v and s_z.

    Parameters
    ----------
    size : int
        Length of the vector.
    initial : float
        Effective value at the start.
    scale : float
        Stored value at the start.

    Examples
    --------
    >>> LearnedScale(2, initial=0.05, scale=0.5)()
    tensor([0.0500, 0.0500], grad_fn=<MulBackward0>)
    """

    def __init__(self, size: int, *, initial: float, scale: float) -> None:
        super().__init__()
        if scale <= 0 or initial == 0:
            raise ValueError(f"scale, initial: expected scale > 0 and initial != 0, got {scale} and {initial}")
        self.factor = initial / scale
        self.stored = nn.Parameter(torch.full((size,), scale))

    def forward(self) -> Tensor:
        """Return the effective vector."""
        return self.stored * self.factor

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.stored.numel()}, factor={self.factor:.4g}"


@dataclass(frozen=True)
class NGPTConfig:
    """Sizes and initial values of an nGPT.

    Attributes
    ----------
    vocab_size, dim, layers, heads : int
        Vocabulary, width of the stream, number of blocks, attention heads (heads * even head size = dim).
    key_value_heads : int, optional
        Fewer key-value heads for grouped queries; default `heads`.
    hidden : int, optional
        Width of each half of the MLP; default 4 * dim.
    context : int
        Longest sequence.
    alpha : float
        Initial rate of both blocks; the paper's order of magnitude is 1/layers.
    loops : int
        Passes through the stack of blocks.
    rotary_base : float
        Base of the rotary angles.
    """

    vocab_size: int
    dim: int = 768
    layers: int = 12
    heads: int = 12
    key_value_heads: int | None = None
    hidden: int | None = None
    context: int = 1024
    alpha: float = 0.05
    loops: int = 1
    rotary_base: float = 10000.0


class NGPTAttention(nn.Module):
    """Attention whose queries and keys are unit vectors, per head, times a learned scale.

    With unit vectors q and k after rotation, logits are sqrt(head_dim) * <s_qk * q, s_qk * k>. The scale is applied as
    s_qk^2 to the query alone, which is the same function and lets the cache hold unit keys; with grouped queries each
    query head then has its own scale, as many numbers as the paper's s_qk of length `dim`. Scaling follows the
    rotation, as in the paper, so a learned s_qk lets the logits depend on absolute positions too.

    Parameters
    ----------
    dim, heads : int
        Width and number of heads.
    key_value_heads : int, optional
        Default `heads`.
    rotary_base : float
        Used when `forward` gets no table of angles.
    """

    def __init__(
        self, dim: int, heads: int, *, key_value_heads: int | None = None, rotary_base: float = 10000.0
    ) -> None:
        super().__init__()
        self.heads = heads
        self.key_value_heads = heads if key_value_heads is None else key_value_heads
        check_heads(dim, heads, self.key_value_heads)
        self.head_dim = dim // heads
        self.rotary_base = rotary_base
        self.query = NormalizedLinear(dim, dim, unit_norm_dim=1)
        self.key = NormalizedLinear(dim, self.key_value_heads * self.head_dim, unit_norm_dim=1)
        self.value = NormalizedLinear(dim, self.key_value_heads * self.head_dim, unit_norm_dim=1)
        self.output = NormalizedLinear(dim, dim, unit_norm_dim=0)
        self.s_qk = LearnedScale(dim, initial=1.0, scale=dim**-0.5)

    def forward(
        self,
        stream: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the attention output (batch, length, dim), not yet normalised."""
        if rotation is None:
            rotation = rotary_table_after(cache, stream, self.head_dim, base=self.rotary_base)
        query = unit_norm(rotate(split_heads(self.query(stream), self.heads), rotation))
        key = unit_norm(rotate(split_heads(self.key(stream), self.key_value_heads), rotation))
        value = split_heads(self.value(stream), self.key_value_heads)
        if cache is not None:
            key, value = cache.append(key, value)
        s_qk = self.s_qk().square().view(self.heads, 1, self.head_dim)
        # Under autocast the float32 scale must not raise the query above the dtype of keys and values.
        query, key = (query * s_qk).to(value.dtype), key.to(value.dtype)
        return self.output(merge_heads(causal_attention(query, key, value, scale=self.head_dim**0.5, mask=mask)))


class NGPTMLP(nn.Module):
    """The gated MLP u * silu(v) with u = s_u * (W_u h) and v = s_v * sqrt(dim) * (W_v h).

    Parameters
    ----------
    dim, hidden : int
        Width of the stream and of each half.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = NormalizedLinear(dim, hidden, unit_norm_dim=1)
        self.gate = NormalizedLinear(dim, hidden, unit_norm_dim=1)
        self.output = NormalizedLinear(hidden, dim, unit_norm_dim=0)
        self.s_u = LearnedScale(hidden, initial=1.0, scale=1.0)
        self.s_v = LearnedScale(hidden, initial=1.0, scale=1.0)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the MLP output (batch, length, dim), not yet normalised."""
        up = self.s_u() * self.up(stream)
        gate = self.s_v() * stream.shape[-1] ** 0.5 * self.gate(stream)
        return self.output(up * F.silu(gate))


class NGPTBlock(nn.Module):
    """Attention and MLP, each followed by h <- norm(h + |alpha| * (norm(output) - h)).

    Takes and returns unit vectors, so it can stand in any model whose stream is normalised.

    Parameters
    ----------
    dim, heads : int
        Width and attention heads.
    key_value_heads : int, optional
        Default `heads`.
    hidden : int, optional
        Default 4 * dim.
    alpha : float
        Initial rate of both updates.
    rotary_base : float
        Used when `forward` gets no table of angles.

    Notes
    -----
    The absolute value keeps a rate from turning negative. For a scalar alpha < 1/2 the update is the projection
    retraction (p = 1) of `manifoldnorm.nn.SphereResidual` with step alpha / (1 - alpha + alpha * <h, output>).

    Source: arXiv 2410.01131, section 2 and table 1; https://github.com/NVIDIA/ngpt. The paper scales v by sqrt(dim) and
    not u, NVIDIA's code both: the same function, since the output is normalised.

    Examples
    --------
    >>> block = NGPTBlock(8, heads=2)
    >>> stream = block(unit_norm(torch.randn(1, 5, 8)))
    >>> stream.shape, bool((stream.norm(dim=-1) - 1).abs().max() < 1e-6)
    (torch.Size([1, 5, 8]), True)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_value_heads: int | None = None,
        hidden: int | None = None,
        alpha: float = 0.05,
        rotary_base: float = 10000.0,
    ) -> None:
        super().__init__()
        self.attention = NGPTAttention(dim, heads, key_value_heads=key_value_heads, rotary_base=rotary_base)
        self.mlp = NGPTMLP(dim, 4 * dim if hidden is None else hidden)
        self.alpha_attention = LearnedScale(dim, initial=alpha, scale=dim**-0.5)
        self.alpha_mlp = LearnedScale(dim, initial=alpha, scale=dim**-0.5)

    def forward(
        self,
        stream: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        loop: int = 0,
    ) -> Tensor:
        """Return the stream after the block, (batch, length, dim); the step does not depend on `loop`."""
        output = unit_norm(self.attention(stream, rotation=rotation, mask=mask, cache=cache))
        stream = unit_norm(stream + self.alpha_attention().abs() * (output - stream))
        output = unit_norm(self.mlp(stream))
        return unit_norm(stream + self.alpha_mlp().abs() * (output - stream))


class NGPTReadout(nn.Module):
    """Logits s_z * (W h) with unit rows of W: scaled cosines between the state and each token."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.output = NormalizedLinear(dim, vocab_size, unit_norm_dim=1)
        self.s_z = LearnedScale(vocab_size, initial=1.0, scale=dim**-0.5)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the logits (batch, length, vocab_size)."""
        return self.s_z() * self.output(stream)


class NGPT(Decoder):
    """The normalised transformer as a language model.

    Train with Adam without weight decay and warm-up, and `register_weight_normalization(optimizer, model)`.

    Parameters
    ----------
    config : NGPTConfig
        Sizes.

    Examples
    --------
    >>> model = NGPT(NGPTConfig(vocab_size=50, dim=16, layers=2, heads=2, context=32))
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    >>> _ = register_weight_normalization(optimizer, model)
    >>> tokens = torch.randint(50, (4, 32))
    >>> model(tokens).shape
    torch.Size([4, 32, 50])
    >>> model.generate(tokens[:, :3], 5).shape
    torch.Size([4, 8])
    """

    def __init__(self, config: NGPTConfig) -> None:
        if config.vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {config.vocab_size}")
        blocks = [
            NGPTBlock(
                config.dim,
                config.heads,
                key_value_heads=config.key_value_heads,
                hidden=config.hidden,
                alpha=config.alpha,
                rotary_base=config.rotary_base,
            )
            for _ in range(config.layers)
        ]
        super().__init__(
            embedding=NormalizedEmbedding(config.vocab_size, config.dim),
            blocks=blocks,
            between_loops=nn.Identity(),
            readout=NGPTReadout(config.dim, config.vocab_size),
            vocab_size=config.vocab_size,
            context=config.context,
            head_dim=config.dim // config.heads,
            rotary_base=config.rotary_base,
            loops=config.loops,
        )
        self.config = config
