"""A pre-norm transformer that is a fair baseline, and the same model with its residual stream on a sphere.

Only the residual connection differs: `residual="prenorm"` adds each sublayer's output to the stream and normalises what
the next sublayer reads; "proj", "cayley", "geonorm" or a number p turn a stream of constant norm towards the output
(`SphereResidual`) and need no norm layers; "ngpt" normalises weights too (`manifoldnorm.nn.ngpt`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
from manifoldnorm.nn.ngpt import NGPTBlock, NGPTReadout
from manifoldnorm.nn.residual import Decay, SphereResidual
from manifoldnorm.nn.unit_norm import NormalizedEmbedding, unit_norm

ResidualName = Literal["prenorm", "geonorm", "proj", "cayley", "ngpt"]

_POWERS = {"proj": 1.0, "cayley": 2.0, "geonorm": math.inf}


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and residual scheme of a `Transformer`.

    Attributes
    ----------
    vocab_size, dim, layers, heads : int
        Vocabulary, width of the stream, number of blocks, attention heads (heads * even head size = dim).
    residual : {"prenorm", "geonorm", "proj", "cayley", "ngpt"} or float
        The residual connection; a number is the p of `SphereResidual`.
    key_value_heads : int, optional
        Fewer key-value heads for grouped queries; default `heads`.
    hidden : int, optional
        Width of each half of the gated MLP; default 8/3 * dim, rounded up to a multiple of 8.
    context : int
        Longest sequence.
    normalize_embedding : bool
        Bring the stream to norm sqrt(dim) after the embedding. Without it the first blocks of a pre-norm model see
        updates much longer than the stream; a comparison against such a baseline flatters every other scheme. The
        spherical schemes need it.
    normalize_update : bool
        Spherical schemes: scale each update to norm sqrt(dim) before the learned step; see `SphereResidual`.
    step_decay : {"harmonic", "sqrt", "linear"}, optional
        Spherical schemes: decay of the step over the sublayers.
    readout : {"normalized", "raw"}
        "normalized" puts an RMSNorm before the output matrix; "raw" lets the logits see the norm of a pre-norm stream.
        On a sphere the norm is constant and the two differ by a gain only.
    loops : int
        Passes through the stack of blocks, with the same weights.
    normalize_between_loops : bool
        Scale the stream to norm sqrt(dim) after every loop.
    loop_decay : {"harmonic", "sqrt", "linear"}, optional
        Spherical schemes: decay of the step over the loops.
    alpha : float, optional
        nGPT: initial rate of the blocks; default 1/layers.
    rotary_base : float
        Base of the rotary angles.
    """

    vocab_size: int
    dim: int = 768
    layers: int = 12
    heads: int = 12
    residual: ResidualName | float = "prenorm"
    key_value_heads: int | None = None
    hidden: int | None = None
    context: int = 1024
    normalize_embedding: bool = True
    normalize_update: bool = True
    step_decay: Decay | None = None
    readout: Literal["normalized", "raw"] = "normalized"
    loops: int = 1
    normalize_between_loops: bool = False
    loop_decay: Decay | None = None
    alpha: float | None = None
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.layers < 1:
            raise ValueError(f"vocab_size, layers: expected at least 1 each, got {self.vocab_size} and {self.layers}")
        check_heads(self.dim, self.heads, self.heads if self.key_value_heads is None else self.key_value_heads)
        if isinstance(self.residual, str) and self.residual not in ("prenorm", "ngpt", *_POWERS):
            raise ValueError(
                f'residual: expected "prenorm", "geonorm", "proj", "cayley", "ngpt" or a number p > 0, '
                f"got {self.residual!r}"
            )
        if self.readout not in ("normalized", "raw"):
            raise ValueError(f'readout: expected "normalized" or "raw", got {self.readout!r}')
        if self.residual != "prenorm" and not self.normalize_embedding:
            raise ValueError("normalize_embedding: expected True, a stream on a sphere must start there; got False")
        if self.power is None and (self.step_decay or self.loop_decay or not self.normalize_update):
            raise ValueError(
                "step_decay, loop_decay, normalize_update: only for the spherical residuals "
                f'("geonorm", "proj", "cayley" or p), got them with residual={self.residual!r}'
            )
        if self.residual == "ngpt" and self.readout == "raw":
            raise ValueError('readout: nGPT has its own, expected "normalized", got "raw"')
        if self.residual != "ngpt" and self.alpha is not None:
            raise ValueError(f'alpha: only for residual="ngpt", got it with residual={self.residual!r}')

    @property
    def power(self) -> float | None:
        """The p of a spherical scheme, None for "prenorm" and "ngpt"."""
        return _POWERS.get(self.residual) if isinstance(self.residual, str) else float(self.residual)

    @property
    def mlp_width(self) -> int:
        """Width of each half of the MLP."""
        return self.hidden if self.hidden is not None else -(-8 * self.dim // 24) * 8


class SelfAttention(nn.Module):
    """Causal self-attention with rotary positions and grouped queries, without biases.

    Parameters
    ----------
    config : TransformerConfig
        Sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.key_value_heads = config.heads if config.key_value_heads is None else config.key_value_heads
        self.head_dim = config.dim // config.heads
        self.rotary_base = config.rotary_base
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, self.key_value_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.dim, self.key_value_heads * self.head_dim, bias=False)
        self.output = nn.Linear(config.dim, config.dim, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the attention output, (batch, length, dim) like `x`."""
        if rotation is None:
            rotation = rotary_table_after(cache, x, self.head_dim, base=self.rotary_base)
        value = split_heads(self.value(x), self.key_value_heads)
        query = rotate(split_heads(self.query(x), self.heads), rotation).to(value.dtype)
        key = rotate(split_heads(self.key(x), self.key_value_heads), rotation).to(value.dtype)
        if cache is not None:
            key, value = cache.append(key, value)
        return self.output(merge_heads(causal_attention(query, key, value, scale=self.head_dim**-0.5, mask=mask)))


class GatedMLP(nn.Module):
    """The gated MLP output(up(x) * silu(gate(x))), without biases (SwiGLU; Shazeer, 2020).

    Parameters
    ----------
    config : TransformerConfig
        Sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, config.mlp_width, bias=False)
        self.gate = nn.Linear(config.dim, config.mlp_width, bias=False)
        self.output = nn.Linear(config.mlp_width, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP output, (batch, length, dim) like `x`."""
        return self.output(self.up(x) * F.silu(self.gate(x)))


class PreNormBlock(nn.Module):
    """The pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); the residual is the stream itself.

    Parameters
    ----------
    config : TransformerConfig
        Sizes.

    Examples
    --------
    >>> block = PreNormBlock(TransformerConfig(vocab_size=1, dim=8, heads=2))
    >>> block(torch.randn(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim)
        self.attention = SelfAttention(config)
        self.mlp_norm = nn.RMSNorm(config.dim)
        self.mlp = GatedMLP(config)

    def forward(
        self,
        stream: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        loop: int = 0,
    ) -> Tensor:
        """Return the stream after the block; `loop` makes no difference."""
        stream = stream + self.attention(self.attention_norm(stream), rotation=rotation, mask=mask, cache=cache)
        return stream + self.mlp(self.mlp_norm(stream))


class SphereBlock(nn.Module):
    """The same block on a sphere of radius sqrt(dim): sublayers read the stream as it is and turn it.

    Parameters
    ----------
    config : TransformerConfig
        Sizes, p, and the step of the turns.
    layer : int
        Index of the block, for the decay of the step.

    Examples
    --------
    >>> block = SphereBlock(TransformerConfig(vocab_size=1, dim=8, heads=2, residual="proj"), layer=0)
    >>> stream = block(2 * torch.ones(1, 5, 8).sqrt())
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        if config.power is None:
            raise ValueError(f"residual: expected a spherical scheme or a number p, got {config.residual!r}")
        self.attention = SelfAttention(config)
        self.mlp = GatedMLP(config)
        self.attention_residual, self.mlp_residual = (
            SphereResidual(
                config.dim,
                config.power,
                decay=config.step_decay,
                layer=layer,
                num_layers=config.layers * config.loops,
                normalize_update=config.normalize_update,
                loop_decay=config.loop_decay,
                num_loops=config.loops,
            )
            for _ in range(2)
        )

    def forward(
        self,
        stream: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        loop: int = 0,
    ) -> Tensor:
        """Return the stream after the block; a step with `loop_decay` depends on `loop`."""
        update = self.attention(stream, rotation=rotation, mask=mask, cache=cache)
        stream = self.attention_residual(stream, update.to(stream.dtype), loop=loop)
        return self.mlp_residual(stream, self.mlp(stream).to(stream.dtype), loop=loop)


class ScaledNorm(nn.Module):
    """Scale vectors of length d to norm sqrt(d): an RMSNorm without weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` at norm sqrt(d) along the last dimension; zero vectors stay zero."""
        return unit_norm(x) * x.shape[-1] ** 0.5


class Transformer(Decoder):
    """A causal language model with rotary attention, gated MLPs and the residual scheme of its configuration.

    All schemes have the same sublayers and initial weights (standard deviation 1/sqrt(inputs)), the output projections
    of "prenorm" divided by sqrt(2 layers). Embedding and readout are not tied. Parameter counts differ only by the
    vectors of norm weights, steps and scales.

    Parameters
    ----------
    config : TransformerConfig
        Sizes and scheme.

    Examples
    --------
    >>> config = TransformerConfig(vocab_size=50, dim=16, layers=2, heads=2, context=32, residual="cayley")
    >>> model = Transformer(config)
    >>> tokens = torch.randint(50, (4, 32))
    >>> model(tokens).shape
    torch.Size([4, 32, 50])
    >>> norms = model.streams(tokens)[-1].norm(dim=-1)
    >>> bool((norms - 4).abs().max() < 1e-5)
    True
    """

    def __init__(self, config: TransformerConfig) -> None:
        ngpt = config.residual == "ngpt"
        super().__init__(
            embedding=NormalizedEmbedding(config.vocab_size, config.dim) if ngpt else _embedding(config),
            blocks=[_block(config, layer) for layer in range(config.layers)],
            between_loops=ScaledNorm()
            if config.normalize_between_loops and not ngpt
            else nn.Identity(),  # nGPT: unit anyway
            readout=NGPTReadout(config.dim, config.vocab_size) if ngpt else _readout(config),
            vocab_size=config.vocab_size,
            context=config.context,
            head_dim=config.dim // config.heads,
            rotary_base=config.rotary_base,
            loops=config.loops,
        )
        self.config = config
        if not ngpt:
            self._initialize()

    def _initialize(self) -> None:
        shrink = (2 * self.config.layers * self.config.loops) ** -0.5 if self.config.residual == "prenorm" else 1.0
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                factor = shrink if name.endswith((".attention.output", ".mlp.output")) else 1.0
                nn.init.normal_(module.weight, std=factor * module.in_features**-0.5)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)


def _embedding(config: TransformerConfig) -> nn.Module:
    embedding = nn.Embedding(config.vocab_size, config.dim)
    return nn.Sequential(embedding, ScaledNorm()) if config.normalize_embedding else embedding


def _block(config: TransformerConfig, layer: int) -> nn.Module:
    if config.residual == "prenorm":
        return PreNormBlock(config)
    if config.residual == "ngpt":
        return NGPTBlock(
            config.dim,
            config.heads,
            key_value_heads=config.key_value_heads,
            hidden=config.mlp_width,
            alpha=1 / config.layers if config.alpha is None else config.alpha,
            rotary_base=config.rotary_base,
        )
    return SphereBlock(config, layer)


def _readout(config: TransformerConfig) -> nn.Module:
    output = nn.Linear(config.dim, config.vocab_size, bias=False)
    return nn.Sequential(nn.RMSNorm(config.dim), output) if config.readout == "normalized" else output
