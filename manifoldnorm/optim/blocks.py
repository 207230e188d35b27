"""Parameters seen as matrices: kernels flattened, fused projections split, equal shapes stacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# On the CPU batched products stop paying above this many entries a matrix, and copying into the batch starts to cost.
_LARGEST_STACKED_ON_CPU = 1 << 17
_LARGEST_STACK = 1 << 26


@dataclass(frozen=True, eq=False)
class Block:
    """A range of rows of a parameter, as a matrix: (rows, product of the other dimensions).

    Attributes
    ----------
    parameter : Tensor
        Of two or more dimensions; a convolution kernel (out, in, ...) counts as (out, in * ...).
    start, stop : int
        The rows.
    index : int
        Which of the parameter's blocks this is.
    """

    parameter: Tensor
    start: int
    stop: int
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = matrix_shape(self.parameter)
        return self.stop - self.start, columns if rows else 0

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return the view of this block's rows of a tensor shaped like the parameter."""
        whole = self.start == 0 and self.stop == tensor.shape[0]
        return tensor if whole else tensor[self.start : self.stop]

    def matrix_of(self, tensor: Tensor) -> Tensor:
        """Return this block of a tensor shaped like the parameter as a matrix; a view unless strides forbid it."""
        rows = self.rows_of(tensor)
        return rows if rows.ndim == 2 else rows.reshape(rows.shape[0], -1)


def matrix_shape(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of a parameter seen as a matrix."""
    rows = parameter.shape[0]
    return rows, parameter.numel() // rows if rows else 0


def blocks_of(parameter: Tensor, split: Sequence[int] | None) -> list[Block]:
    """Cut a parameter along its rows; one block without `split`."""
    sizes = [parameter.shape[0]] if split is None else list(split)
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [Block(parameter, stop - size, stop, i) for i, (size, stop) in enumerate(zip(sizes, stops))]


def check_split(parameter: Tensor, split: Sequence[int] | None, name: str) -> None:
    """Raise ValueError, naming the parameter, unless the sizes are positive and add up to its rows."""
    if split is None:
        return
    if not all(isinstance(size, int) and size > 0 for size in split) or sum(split) != parameter.shape[0]:
        raise ValueError(
            f"split must list positive row counts that add up to the {parameter.shape[0]} rows of {name}, got {split}"
        )


def buckets(blocks: Iterable[Block], key: Mapping[Tensor, object]) -> Iterator[list[Block]]:
    """Gather blocks of equal shape, dtype, device and `key` of their parameter, in chunks worth stacking."""
    groups: dict[object, list[Block]] = {}
    for block in blocks:
        parameter = block.parameter
        signature = (block.shape, parameter.dtype, parameter.device, key.get(parameter))
        groups.setdefault(signature, []).append(block)
    for members in groups.values():
        rows, columns = members[0].shape
        entries = max(1, rows * columns)
        on_cpu = members[0].parameter.device.type == "cpu"
        if on_cpu and entries > _LARGEST_STACKED_ON_CPU:
            size = 1
        else:
            size = max(1, _LARGEST_STACK // entries)
        for first in range(0, len(members), size):
            yield members[first : first + size]


def stack(blocks: Sequence[Block], tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """Stack the blocks' matrices of tensors shaped like their parameters; a view for a single block."""
    matrices = [block.matrix_of(tensor) for block, tensor in zip(blocks, tensors)]
    result = matrices[0].unsqueeze(0) if len(matrices) == 1 else torch.stack(matrices)
    return result if dtype is None else result.to(dtype)


def unstack_(blocks: Sequence[Block], tensors: Sequence[Tensor], values: Tensor) -> None:
    """Write a stack of matrices back into tensors shaped like the blocks' parameters."""
    for block, tensor, value in zip(blocks, tensors, values):
        rows = block.rows_of(tensor)
        # A stack of one block may be a view of the tensor itself, already written in place.
        if rows.data_ptr() != value.data_ptr() or rows.dtype != value.dtype:
            rows.copy_(value.view(rows.shape))
