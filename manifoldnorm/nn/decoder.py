"""The frame of a causal language model: embedding, blocks that may be looped, readout, generation with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.nn.attention import KeyValueCache, rotary_table_after


class DecoderBlock(Protocol):
    """What `Decoder` asks of a block: a new stream from a stream, both (batch, length, dim)."""

    def __call__(
        self,
        stream: Tensor,
        *,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        loop: int = 0,
    ) -> Tensor:
        """Return the stream after the block; `loop` counts the passes through the stack from zero."""
        ...


class Decoder(nn.Module):
    """A causal language model made of an embedding, a stack of blocks and a readout.

    The stack is applied `loops` times, with the same weights: a looped (recurrent-depth) transformer.

    Parameters
    ----------
    embedding : Module
        Tokens (batch, length) to the first stream (batch, length, dim).
    blocks : sequence of Module
        Each takes what `DecoderBlock` says.
    between_loops : Module
        Applied to the stream after every loop, `nn.Identity()` for none.
    readout : Module
        Stream to logits (batch, length, vocab_size).
    vocab_size : int
        Number of tokens that `embedding` knows.
    context : int
        Longest sequence, cached positions included.
    head_dim : int
        Size of an attention head, for the rotary angles.
    rotary_base : float
        Base of the rotary angles.
    loops : int
        Passes through the stack unless a call says otherwise.

    See Also
    --------
    manifoldnorm.nn.transformer.Transformer, manifoldnorm.nn.ngpt.NGPT
    """

    def __init__(
        self,
        *,
        embedding: nn.Module,
        blocks: Sequence[nn.Module],
        between_loops: nn.Module,
        readout: nn.Module,
        vocab_size: int,
        context: int,
        head_dim: int,
        rotary_base: float,
        loops: int,
    ) -> None:
        super().__init__()
        for name, value in (("context", context), ("loops", loops), ("layers", len(blocks))):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.between_loops = between_loops
        self.readout = readout
        self.vocab_size = vocab_size
        self.context = context
        self.head_dim = head_dim
        self.rotary_base = rotary_base
        self.loops = loops

    def streams(
        self,
        tokens: Tensor,
        *,
        loops: int | None = None,
        mask: Tensor | None = None,
        caches: list[KeyValueCache] | None = None,
    ) -> list[Tensor]:
        """Return the residual stream after the embedding and after each loop.

        Parameters
        ----------
        tokens : Tensor
            int64, shape (batch, length).
        loops : int, optional
            Passes through the stack; the model's own number by default.
        mask : Tensor, optional
            Boolean (batch, positions): True at tokens, False at padding. A fully masked row attends to nothing.
        caches : list of KeyValueCache, optional
            From `new_caches`; tokens continue the sequence stored there.

        Returns
        -------
        list of Tensor
            loops + 1 tensors (batch, length, dim). `model.readout` turns each into logits.

        Raises
        ------
        ValueError, TypeError
            Tokens are not integers of shape (batch, length), or the context is longer than configured.
        """
        loops = self.loops if loops is None else loops
        self._check(tokens, loops, caches)
        stream = self.embedding(tokens)
        rotation = rotary_table_after(caches[0] if caches else None, stream, self.head_dim, base=self.rotary_base)
        streams = [stream]
        for loop in range(loops):
            for layer, block in enumerate(self.blocks):
                cache = caches[loop * len(self.blocks) + layer] if caches else None
                stream = block(stream, rotation=rotation, mask=mask, cache=cache, loop=loop)
            stream = self.between_loops(stream)
            streams.append(stream)
        return streams

    def forward(
        self,
        tokens: Tensor,
        *,
        loops: int | None = None,
        mask: Tensor | None = None,
        caches: list[KeyValueCache] | None = None,
    ) -> Tensor:
        """Return the logits (batch, length, vocab_size) of the next token; arguments as in `streams`."""
        logits: Tensor = self.readout(self.streams(tokens, loops=loops, mask=mask, caches=caches)[-1])
        return logits

    def new_caches(self, *, loops: int | None = None) -> list[KeyValueCache]:
        """Return empty caches, one for each block and loop."""
        return [KeyValueCache() for _ in range(len(self.blocks) * (self.loops if loops is None else loops))]

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        new_tokens: int,
        *,
        temperature: float = 1.0,
        loops: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Sample a continuation, one token at a time, with cached keys and values.

        Parameters
        ----------
        tokens : Tensor
            int64, shape (batch, length), length >= 1: the beginning.
        new_tokens : int
            Number of tokens to add; together they must fit in the context.
        temperature : float
            Divides the logits; 0 takes the most likely token.
        loops : int, optional
            Passes through the stack.
        generator : torch.Generator, optional
            Source of randomness.

        Returns
        -------
        Tensor
            int64, shape (batch, length + new_tokens): the beginning and its continuation.
        """
        if not temperature >= 0 or new_tokens < 0:
            raise ValueError(f"temperature, new_tokens: expected >= 0 each, got {temperature} and {new_tokens}")
        if tokens.ndim == 2 and tokens.shape[1] + new_tokens > self.context:
            raise ValueError(
                f"new_tokens: {tokens.shape[1]} + {new_tokens} tokens exceed the context of {self.context}; "
                "shorten the beginning or ask for fewer tokens"
            )
        caches = self.new_caches(loops=loops)
        fresh = tokens
        for _ in range(new_tokens):
            logits = self(fresh, loops=loops, caches=caches)[:, -1].float()
            if temperature == 0:
                fresh = logits.argmax(dim=-1, keepdim=True)
            else:
                probabilities = torch.softmax(logits / temperature, dim=-1)
                fresh = torch.multinomial(probabilities, 1, generator=generator)
            tokens = torch.cat([tokens, fresh], dim=1)
        return tokens

    def _check(self, tokens: Tensor, loops: int, caches: list[KeyValueCache] | None) -> None:
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise TypeError(f"tokens: expected an integer tensor, got {tokens.dtype}")
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens: expected shape (batch, length) with length >= 1, got {tuple(tokens.shape)}")
        if tokens.numel() and may_look_at(tokens):
            least, greatest = (int(bound) for bound in torch.aminmax(tokens))
            if least < 0 or greatest >= self.vocab_size:
                raise ValueError(
                    f"tokens: expected numbers from 0 to {self.vocab_size - 1}, the vocabulary of the model, "
                    f"got {least if least < 0 else greatest}"
                )
        start = caches[0].length if caches else 0
        if start + tokens.shape[1] > self.context:
            raise ValueError(
                f"tokens: {start} cached + {tokens.shape[1]} new positions exceed the context of {self.context}; "
                "cut the sequence or configure a longer context"
            )
        if loops < 1:
            raise ValueError(f"loops: expected at least 1, got {loops}")
        if caches is not None and len(caches) != loops * len(self.blocks):
            raise ValueError(
                f"caches: expected {loops * len(self.blocks)}, one for each block and loop, got {len(caches)}; "
                "make them with new_caches(loops=...)"
            )


def stream_norm_penalty(streams: Sequence[Tensor]) -> Tensor:
    """Mean squared relative deviation of the stream's norm from sqrt(dim), over loops and positions.

    A readout that normalises first cannot see the norm of a looped pre-norm stream, which then grows; adding a small
    multiple of this to the loss controls it (Sharma and Vu, 2026).

    Examples
    --------
    >>> stream_norm_penalty([torch.ones(2, 3, 4), 3 * torch.ones(2, 3, 4)])
    tensor(2.)
    """
    if not streams:
        raise ValueError("streams: expected at least one tensor, got none")
    norms = torch.stack([torch.linalg.vector_norm(stream, dim=-1) for stream in streams])
    return (norms / streams[0].shape[-1] ** 0.5 - 1).square().mean()
