"""Checks of what a caller hands in: edge lists, node sets, scores, budgets. Each error says what to do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def simple_edge_rows(edges: npt.ArrayLike | torch.Tensor, *, directed: bool = False) -> IntArray:
    """Rows of an edge list that remain when self-loops go and of repeated edges only the first stays.

    Parameters
    ----------
    edges
        Integers, shape (edges, 2).
    directed
        Whether (u, v) and (v, u) are different edges.

    Returns
    -------
    Row numbers, int64, ascending.

    Examples
    --------
    >>> simple_edge_rows([(0, 1), (1, 1), (1, 0), (2, 1)]).tolist()
    [0, 3]
    """
    pairs = as_pairs(edges)
    rows = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    _, first = np.unique(_edge_keys(pairs[rows], directed), return_index=True)
    return rows[np.sort(first)]


def check_nodes(nodes: npt.ArrayLike | torch.Tensor, num_nodes: int, *, name: str) -> IntArray:
    """Return ``nodes`` as int64 of shape (k,), or raise a ValueError that names what is wrong.

    Wrong are: a number that is no integer, a node outside 0..n-1, a repeated node.
    """
    array = np.asarray(nodes.detach().cpu() if isinstance(nodes, torch.Tensor) else nodes)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} must be a one-dimensional array of node numbers, got shape {array.shape}, dtype {array.dtype}."
        )
    array = array.astype(np.int64)
    outside = (array < 0) | (array >= num_nodes)
    if np.any(outside):
        raise ValueError(
            f"{name} must lie in 0..{num_nodes - 1}, got {int(array[outside][0])} "
            f"at position {int(np.argmax(outside))}."
        )
    seen = np.bincount(array, minlength=1)
    if np.any(seen > 1):
        raise ValueError(f"{name} must be distinct, but node {int(np.argmax(seen > 1))} is repeated.")
    return array


def check_scores(scores: npt.ArrayLike | torch.Tensor, num_nodes: int) -> FloatArray:
    """Return ``scores`` as float64 of shape (nodes,), or raise a ValueError; (nodes, 1) is accepted."""
    array = np.asarray(scores.detach().cpu().double() if isinstance(scores, torch.Tensor) else scores, dtype=np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (num_nodes,):
        raise ValueError(f"scores must have shape ({num_nodes},), one a node; got {array.shape}.")
    if np.any(np.isnan(array)):
        raise ValueError(f"scores must not be NaN, but the score of node {int(np.argmax(np.isnan(array)))} is.")
    return array


def as_pairs(edges: npt.ArrayLike | torch.Tensor) -> IntArray:
    """Return an edge list as int64 of shape (edges, 2), or raise a ValueError."""
    array = np.asarray(edges.detach().cpu() if isinstance(edges, torch.Tensor) else edges)
    if array.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"edges must be integers of shape (edges, 2), got shape {array.shape}, dtype {array.dtype}.")
    return array.astype(np.int64)


def _edge_keys(pairs: IntArray, directed: bool) -> IntArray:
    if not directed:
        pairs = np.sort(pairs, axis=1)
    span = int(pairs.max(initial=0)) + 1
    return pairs[:, 0] * span + pairs[:, 1]


def check_simple(num_nodes: int, pairs: IntArray, directed: bool) -> None:
    """Raise a ValueError for a node outside 0..num_nodes-1, a self-loop or a repeated edge."""
    outside = np.any((pairs < 0) | (pairs >= num_nodes), axis=1)
    if np.any(outside):
        row = int(np.argmax(outside))
        raise ValueError(f"edges must join nodes 0..{num_nodes - 1}, got {tuple(pairs[row].tolist())} in row {row}.")
    loops = pairs[:, 0] == pairs[:, 1]
    if np.any(loops):
        raise ValueError(self_loop_message(int(pairs[np.argmax(loops), 0])))
    keys = _edge_keys(pairs, directed)
    order = np.argsort(keys, kind="stable")
    repeats = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(repeats):
        first, second = int(order[repeats[0]]), int(order[repeats[0] + 1])
        raise ValueError(
            f"edges must be distinct, but row {second} {tuple(pairs[second].tolist())} repeats row {first}; "
            "keep edges[simple_edge_rows(edges)] to drop repeats."
        )


def self_loop_message(node: int) -> str:
    """Say which node has a self-loop and how to drop it."""
    return (
        f"the graph must be simple, but node {node} has a self-loop; "
        "keep edges[simple_edge_rows(edges)] to drop self-loops."
    )


def check_budget(budget: int, num_nodes: int, *, name: str = "k") -> None:
    """Raise a ValueError unless ``budget`` is a number of nodes from 1 to num_nodes."""
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise ValueError(f"{name} must be an integer, got {budget!r}.")
    if not 1 <= budget <= num_nodes:
        raise ValueError(f"{name} must lie in 1..{num_nodes}, the number of nodes; got {budget}.")
