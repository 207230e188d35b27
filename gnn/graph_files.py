"""What the readers share: numbered lines, edges that know their line, errors that name file and line."""

from __future__ import annotations

import gzip
import re
from collections.abc import Hashable, Iterator
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from manifoldnorm.gnn.checks import FloatArray, IntArray, simple_edge_rows
from manifoldnorm.gnn.graphs import Graph

FilePath = str | PathLike[str]


class GraphFileError(ValueError):
    """A file that does not hold what it should; the message starts with its name and, where known, the line."""

    def __init__(self, path: FilePath, line: int | None, problem: str) -> None:
        where = fspath(path) if line is None else f"{fspath(path)}:{line}"
        super().__init__(f"{where}: {problem}")


class EdgeCollector:
    """Edges with the lines they stand on, so that a repeat can be reported with both."""

    def __init__(self, path: FilePath, directed: bool, simplify: bool) -> None:
        self.path = path
        self.directed = directed
        self.simplify = simplify
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.weights: list[float] = []
        self.lines: list[int] = []

    def __len__(self) -> int:
        return len(self.tails)

    def add(self, line: int, tail: int, head: int, weight: float | None) -> None:
        """Append an edge; a self-loop is an error, and a weight that only some edges have."""
        if tail == head and not self.simplify:
            raise GraphFileError(self.path, line, "a self-loop; simplify=True (--simplify) drops it.")
        if (weight is None) != (not self.weights) and self.tails:
            raise GraphFileError(self.path, line, "some edges have a weight and some have none.")
        self.tails.append(tail)
        self.heads.append(head)
        self.lines.append(line)
        if weight is not None:
            self.weights.append(weight)

    def pairs(self) -> IntArray:
        """Return the edges, shape (edges, 2), after a check that none is repeated."""
        pairs = np.stack([np.array(self.tails, dtype=np.int64), np.array(self.heads, dtype=np.int64)], axis=1)
        kept = simple_edge_rows(pairs, directed=self.directed)
        if len(kept) < len(pairs) and not self.simplify:
            repeat = int(np.setdiff1d(np.arange(len(pairs)), kept)[0])
            ends = pairs[repeat] if self.directed else np.sort(pairs[repeat])
            same = pairs if self.directed else np.sort(pairs, axis=1)
            first = int(np.argmax(np.all(same == ends, axis=1)))
            raise GraphFileError(
                self.path,
                self.lines[repeat],
                f"the edge repeats line {self.lines[first]}; simplify=True (--simplify) keeps the first.",
            )
        return pairs

    def weight_array(self) -> FloatArray | None:
        """Return the weights, shape (edges,), or None if no edge has one."""
        return np.array(self.weights) if self.weights else None

    def graph(self, num_nodes: int, *, order: IntArray | None = None, labels: list[Hashable] | None = None) -> Graph:
        """Build the graph; ``order`` renumbers the nodes."""
        pairs = self.pairs() if order is None else order[self.pairs()]
        return simple_graph(self.path, num_nodes, pairs, self.weight_array(), self.directed, self.simplify, labels)


def simple_graph(
    path: FilePath,
    num_nodes: int,
    pairs: IntArray,
    weights: FloatArray | None,
    directed: bool,
    simplify: bool,
    labels: list[Hashable] | None = None,
) -> Graph:
    """Build a graph, dropping self-loops and repeats if asked; what is wrong with it becomes a GraphFileError."""
    if simplify:
        rows = simple_edge_rows(pairs, directed=directed)
        pairs, weights = pairs[rows], None if weights is None else weights[rows]
    try:
        return Graph.from_edges(num_nodes, pairs, directed=directed, weights=weights, labels=labels)
    except ValueError as error:
        raise GraphFileError(path, None, f"{error} simplify=True (--simplify) drops self-loops and repeats.") from error


def undirected_from_arcs(
    path: FilePath, num_nodes: int, pairs: IntArray, weights: FloatArray | None, simplify: bool
) -> Graph:
    """Build an undirected graph from a file that must list each edge in both directions, with one weight."""
    arcs = simple_graph(path, num_nodes, pairs, weights, True, simplify)
    back = arcs.reverse()
    one_way = np.setdiff1d(arcs.tails * num_nodes + arcs.indices, back.tails * num_nodes + back.indices)
    if len(one_way):
        u, v = divmod(int(one_way[0]), num_nodes)
        raise GraphFileError(
            path, None, f"edge ({u + 1}, {v + 1}) is listed in one direction only; the graph is not undirected."
        )
    if arcs.weights is not None and back.weights is not None and np.any(arcs.weights != back.weights):
        arc = int(np.argmax(arcs.weights != back.weights))
        ends = f"({arcs.tails[arc] + 1}, {arcs.indices[arc] + 1})"
        raise GraphFileError(path, None, f"edge {ends} has different weights in its two directions.")
    return replace(arcs, directed=False)


def lines_of(path: FilePath, *, keep_blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and stripped lines."""
    opened = gzip.open(path, "rt") if fspath(path).endswith(".gz") else open(path)  # noqa: SIM115
    number = 0
    with cast(TextIO, opened) as file:
        try:
            for number, line in enumerate(file, start=1):
                stripped = line.strip()
                if stripped or keep_blank:
                    yield number, stripped
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise GraphFileError(path, number + 1, f"not a text file: {error}") from error


def line_named_in(error: Exception) -> int | None:
    """Find the line that a scipy ("Line 3: ...") or networkx ("... at (3, 1)") error speaks of."""
    found = re.search(r"[Ll]ine (\d+)|at \((\d+), \d+\)", str(error))
    return None if found is None else int(found.group(1) or found.group(2))


def require_file(path: FilePath) -> None:
    """Raise a FileNotFoundError unless the path is a file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {fspath(path)}")


def numbered_node(path: FilePath, line: int, field: str, num_nodes: int) -> int:
    """Read a node that the file counts from 1, as a number from 0."""
    if not is_whole(field) or not 1 <= int(field) <= num_nodes:
        raise GraphFileError(path, line, f"expected a node from 1 to {num_nodes}, got {shown(field)}.")
    return int(field) - 1


def weight_of(path: FilePath, line: int, field: str) -> float:
    """Read a finite number."""
    try:
        weight = float(field)
    except ValueError:
        weight = np.nan
    if not np.isfinite(weight):
        raise GraphFileError(path, line, f"expected a finite weight, got {shown(field)}.")
    return weight


def is_whole(field: str) -> bool:
    """Tell whether a field is a whole number that fits 64 bits."""
    return field.isascii() and field.isdigit() and len(field) <= 18


def shown(text: str) -> str:
    """Quote a field or line for a message, shortened."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
