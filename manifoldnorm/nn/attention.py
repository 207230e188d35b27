"""Causal multi-head attention with rotary positions, grouped queries, padding masks and a key-value cache.

The parts shared by the pre-norm transformer, its spherical variants and nGPT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class KeyValueCache:
    """Keys and values of the positions that one attention layer has seen, for generation token by token.

    `length` positions are stored. Keys and values have shape (batch, key_value_heads, length, head_dim).
    """

    key: Tensor | None = field(default=None, repr=False)
    value: Tensor | None = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """Number of positions stored."""
        return 0 if self.key is None else self.key.shape[-2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of new positions and return those of all positions."""
        if self.key is not None and self.value is not None:
            if self.key.shape[0] != key.shape[0]:
                raise ValueError(
                    f"cache: expected a batch of {self.key.shape[0]} as in the earlier calls, got {key.shape[0]}; "
                    "start a new cache for a new batch"
                )
            key = torch.cat([self.key, key], dim=-2)
            value = torch.cat([self.value, value], dim=-2)
        self.key, self.value = key, value
        return key, value


def rotary_table(positions: Tensor, head_dim: int, *, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary position angles (Su et al., 2021).

    Parameters
    ----------
    positions : Tensor
        Integer, shape (length,).
    head_dim : int
        Even.
    base : float
        The slowest pair turns by about 1/base radians a position.
    dtype : torch.dtype
        Dtype of the result. Angles are computed in float32 at least.

    Returns
    -------
    (Tensor, Tensor)
        Each of shape (length, head_dim / 2).

    Examples
    --------
    >>> cos, sin = rotary_table(torch.arange(2), 4, base=100.0, dtype=torch.float32)
    >>> sin
    tensor([[0.0000, 0.0000],
            [0.8415, 0.0998]])
    """
    precise = torch.promote_types(dtype, torch.float32)
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=positions.device, dtype=precise) / head_dim)
    angles = positions.to(precise)[:, None] * frequencies
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


def rotary_table_after(
    cache: KeyValueCache | None, stream: Tensor, head_dim: int, *, base: float
) -> tuple[Tensor, Tensor]:
    """Return the angles at the positions of `stream`, (batch, length, dim), which follow those in the cache.

    Examples
    --------
    >>> rotary_table_after(None, torch.zeros(1, 2, 8), 4, base=100.0)[1]
    tensor([[0.0000, 0.0000],
            [0.8415, 0.0998]])
    """
    start = 0 if cache is None else cache.length
    positions = torch.arange(start, start + stream.shape[1], device=stream.device)
    return rotary_table(positions, head_dim, base=base, dtype=stream.dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x[i], x[i + head_dim / 2]) by the angles of `table`; x is (..., length, head_dim).

    Examples
    --------
    >>> table = rotary_table(torch.tensor([1]), 2, base=10000.0, dtype=torch.float32)
    >>> rotate(torch.tensor([[1.0, 0.0]]), table)
    tensor([[0.5403, 0.8415]])
    """
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (batch, length, heads * head_dim) to (batch, heads, length, head_dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape (batch, heads, length, head_dim) to (batch, length, heads * head_dim)."""
    return x.transpose(1, 2).flatten(2)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attend from each query to the keys at its own and earlier positions.

    The queries are the last positions of the keys, so that cached keys only make `keys` longer than `length`.

    Parameters
    ----------
    query : Tensor
        Shape (batch, heads, length, head_dim).
    key, value : Tensor
        Shape (batch, key_value_heads, keys, head_dim), keys >= length. With fewer key than query heads, consecutive
        query heads share one (grouped queries).
    scale : float
        Factor on the inner products.
    mask : Tensor, optional
        Boolean, shape (batch, keys): True where a key is a token, False where it is padding.

    Returns
    -------
    Tensor
        Shape of `query`. A query all of whose keys are masked gives zeros, and its gradients are zero.

    Raises
    ------
    ValueError, TypeError
        The mask is not boolean or not (batch, keys).

    Examples
    --------
    >>> query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4)
    >>> value = torch.tensor([1.0, 2.0, 6.0]).reshape(1, 1, 3, 1).expand(1, 1, 3, 4)
    >>> causal_attention(query, key, value, scale=1.0)[0, 0, :, 0]
    tensor([1.0000, 1.5000, 3.0000])
    """
    batch, heads, length, _ = query.shape
    keys = key.shape[-2]
    key, value = _repeat_heads(key, heads), _repeat_heads(value, heads)
    if mask is None:
        if length == keys:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        if length == 1:
            return F.scaled_dot_product_attention(query, key, value, scale=scale)
    visible = torch.ones(length, keys, dtype=torch.bool, device=query.device).tril(keys - length)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a boolean tensor, True at tokens, got {mask.dtype}; compare with == first")
    if mask.shape != (batch, keys):
        raise ValueError(
            f"mask: expected shape (batch, keys) = {(batch, keys)}, got {tuple(mask.shape)}; "
            "with a cache the mask covers the cached positions too"
        )
    visible = visible & mask[:, None, None, :]
    # Softmax over no key is 0/0; such a row attends everywhere and is zeroed, which also stops its gradient.
    attends = visible.any(dim=-1, keepdim=True)
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=visible | ~attends, scale=scale)
    return torch.where(attends, result, torch.zeros_like(result))


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def check_heads(dim: int, heads: int, key_value_heads: int) -> None:
    """Raise ValueError unless the model width splits into heads of even size that groups of queries can share."""
    if dim < 1 or heads < 1 or dim % heads or (dim // heads) % 2:
        raise ValueError(
            f"heads: expected a divisor of dim = {dim} that leaves heads of even size (rotary positions turn pairs), "
            f"got {heads}"
        )
    if key_value_heads < 1 or heads % key_value_heads:
        raise ValueError(f"key_value_heads: expected a divisor of heads = {heads}, got {key_value_heads}")
