"""Graphs from files: edge lists, Matrix Market, GML, METIS, DIMACS. A broken file is an error with file and line.

All readers return a simple graph. Self-loops and repeated edges are errors, unless ``simplify=True`` asks to drop them.
A name that ends in ``.gz`` is decompressed. Nothing is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

import networkx
import numpy as np
import scipy.io
import scipy.sparse

from manifoldnorm.gnn.checks import IntArray
from manifoldnorm.gnn.graph_files import (
    EdgeCollector,
    FilePath,
    GraphFileError,
    is_whole,
    line_named_in,
    lines_of,
    numbered_node,
    require_file,
    shown,
    simple_graph,
    undirected_from_arcs,
    weight_of,
)
from manifoldnorm.gnn.graphs import Graph

__all__ = [
    "GraphFileError",
    "read_dimacs",
    "read_edge_list",
    "read_gml",
    "read_graph",
    "read_matrix_market",
    "read_metis",
    "read_nodes",
]


def read_graph(path: FilePath, *, directed: bool = False, simplify: bool = False) -> Graph:
    r"""Read a graph in the format that the file's name tells.

    ``.mtx`` Matrix Market, ``.gml`` GML, ``.graph`` or ``.metis`` METIS, ``.col``, ``.clq``, ``.mis`` or ``.dimacs``
    DIMACS, ``.txt``, ``.edges``, ``.edgelist``, ``.el``, ``.csv`` or ``.tsv`` edge list; each also with ``.gz``.

    Parameters
    ----------
    path
        The file.
    directed
        Whether edges have a direction; METIS and DIMACS graphs never have one.
    simplify
        Drop self-loops, and of repeated edges all but the first, instead of raising.

    Raises
    ------
    GraphFileError
        If the file is broken, or its name tells no format.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "triangle.txt"
    >>> _ = path.write_text("a b\nb c\nc a\n")
    >>> read_graph(path).labels
    ('a', 'b', 'c')
    """
    name = Path(path)
    suffix = (name.with_suffix("") if name.suffix == ".gz" else name).suffix.lower()
    general: dict[str, Callable[..., Graph]] = {".mtx": read_matrix_market, ".gml": read_gml}
    general |= dict.fromkeys((".txt", ".edges", ".edgelist", ".el", ".csv", ".tsv"), read_edge_list)
    if suffix in general:
        reader = general[suffix]
        return reader(path, directed=directed, simplify=simplify)
    undirected: dict[str, Callable[..., Graph]] = {".graph": read_metis, ".metis": read_metis}
    undirected |= dict.fromkeys((".col", ".clq", ".mis", ".dimacs"), read_dimacs)
    if suffix not in undirected:
        known = ", ".join(sorted(general | undirected))
        reason = f"the name's ending {suffix!r} tells no graph format; expected one of {known}, also with .gz"
        raise GraphFileError(path, None, f"{reason}. Or call the format's own reader.")
    if directed:
        raise GraphFileError(path, None, f"a {suffix} file holds an undirected graph, but directed=True.")
    return undirected[suffix](path, simplify=simplify)


def read_edge_list(path: FilePath, *, directed: bool = False, simplify: bool = False) -> Graph:
    """Read lines ``u v`` or ``u v weight``, separated by blanks, tabs, commas or semicolons.

    Lines that start with ``#`` or ``%`` are comments; a line with one name is an isolated node. If all names are whole
    numbers they are sorted, otherwise they are numbered as they appear; either way they are the graph's labels.

    Parameters
    ----------
    path, directed, simplify
        As in :func:`read_graph`.

    Raises
    ------
    GraphFileError
        For a line of another shape, a weight that is no finite number, weights on some lines only, a self-loop, a
        repeated edge, or no node at all.
    """
    names: dict[str, int] = {}
    edges = EdgeCollector(path, directed, simplify)
    for number, line in lines_of(path):
        if line.startswith(("#", "%")):
            continue
        fields = line.replace(",", " ").replace(";", " ").split()
        if len(fields) > 3:
            raise GraphFileError(path, number, f"expected 'u v' or 'u v weight', got {shown(line)}.")
        ends = [names.setdefault(field, len(names)) for field in fields[:2]]
        if len(ends) == 2:
            edges.add(number, ends[0], ends[1], weight_of(path, number, fields[2]) if len(fields) == 3 else None)
    if not names:
        raise GraphFileError(path, None, "the file has no edges and no nodes.")
    labels: list[Hashable] = list(names)
    order = np.arange(len(names))
    if all(is_whole(name) for name in names):
        numbers = np.array([int(name) for name in names])
        if len(set(numbers.tolist())) < len(numbers):
            raise GraphFileError(path, None, "two names are the same number, such as '1' and '01'.")
        order[np.argsort(numbers)] = np.arange(len(names))
        labels = np.sort(numbers).tolist()
    return edges.graph(len(names), order=order, labels=labels)


def read_matrix_market(path: FilePath, *, directed: bool = False, simplify: bool = False) -> Graph:
    """Read a square Matrix Market matrix; its entries are edges, its values (unless a pattern) their weights.

    A ``general`` matrix read as undirected must be symmetric in its pattern, and in its values.

    Parameters
    ----------
    path, directed, simplify
        As in :func:`read_graph`.

    Raises
    ------
    GraphFileError
        If it is no Matrix Market file, not square, has complex or non-finite values, a diagonal entry, a repeated
        entry, or is not symmetric although undirected.
    """
    require_file(path)
    try:
        header = scipy.io.mminfo(path)
        matrix = scipy.io.mmread(path, spmatrix=False)
    except (ValueError, OverflowError, EOFError, OSError) as error:
        raise GraphFileError(path, line_named_in(error), f"not a Matrix Market file: {error}") from error
    if matrix.shape[0] != matrix.shape[1]:
        raise GraphFileError(path, None, f"an adjacency matrix is square, got shape {matrix.shape}.")
    if isinstance(matrix, np.ndarray):
        matrix = scipy.sparse.coo_array(matrix)
    if np.iscomplexobj(matrix.data):
        raise GraphFileError(path, None, "complex values can't be edge weights.")
    pairs = np.stack([matrix.row, matrix.col], axis=1).astype(np.int64)
    weights = None if header[4] == "pattern" else matrix.data.astype(np.float64)
    if directed:
        return simple_graph(path, matrix.shape[0], pairs, weights, True, simplify)
    return undirected_from_arcs(path, matrix.shape[0], pairs, weights, simplify)


def read_gml(path: FilePath, *, directed: bool = False, simplify: bool = False) -> Graph:
    """Read a GML file through networkx; ``label`` names the nodes where all have distinct ones, ``id`` otherwise.

    A ``weight`` that all edges have is kept.

    Parameters
    ----------
    path, simplify
        As in :func:`read_graph`.
    directed
        Must agree with the file's own ``directed``.

    Raises
    ------
    GraphFileError
        If networkx can't read it (with the line), it is directed and ``directed`` is not or the other way round, or
        the graph is not simple.
    """
    require_file(path)
    try:
        drawn = networkx.read_gml(path, label=None)
    except (networkx.NetworkXError, UnicodeDecodeError, OSError, EOFError, ValueError) as error:
        raise GraphFileError(path, line_named_in(error), f"not a GML file: {error}") from error
    if drawn.is_directed() != directed:
        kind = "a directed" if drawn.is_directed() else "an undirected"
        raise GraphFileError(path, None, f"the file holds {kind} graph, but directed={directed}.")
    position = {node: i for i, node in enumerate(drawn.nodes)}
    labels = [drawn.nodes[node].get("label", node) for node in drawn.nodes]
    if len(set(labels)) < len(labels):
        labels = list(drawn.nodes)
    listed = list(drawn.edges(data=True))
    pairs = np.array([(position[u], position[v]) for u, v, _ in listed], dtype=np.int64).reshape(-1, 2)
    weights = None
    if listed and all("weight" in attributes for *_, attributes in listed):
        weights = np.array([float(attributes["weight"]) for *_, attributes in listed])
    return simple_graph(path, len(labels), pairs, weights, directed, simplify, labels)


def read_metis(path: FilePath, *, simplify: bool = False) -> Graph:
    """Read a METIS graph: a header ``n m [fmt [ncon]]``, then the neighbours of each node, from 1, one line a node.

    Edge weights are kept, node weights and sizes are skipped. Lines that start with ``%`` are comments.

    Parameters
    ----------
    path, simplify
        As in :func:`read_graph`.

    Raises
    ------
    GraphFileError
        For a wrong header, a wrong number of lines or edges, a neighbour outside 1..n, an edge that is listed at one
        end only, a self-loop or a repeated edge.
    """
    lines = ((number, line) for number, line in lines_of(path, keep_blank=True) if not line.startswith("%"))
    number, header = next(((i, line) for i, line in lines if line), (None, ""))
    counts = header.split()
    if not 2 <= len(counts) <= 4 or not all(is_whole(field) for field in counts):
        raise GraphFileError(path, number, f"expected the header 'nodes edges [format]', got {shown(header)}.")
    n, m = int(counts[0]), int(counts[1])
    flags = counts[2].zfill(3) if len(counts) > 2 else "000"
    if len(flags) != 3 or set(flags) - {"0", "1"}:
        raise GraphFileError(path, number, f"the format must be up to three digits 0 or 1, got {counts[2]}.")
    node_fields = int(flags[0]) + int(flags[1]) * (int(counts[3]) if len(counts) > 3 else 1)
    step = 1 + int(flags[2])
    arcs = EdgeCollector(path, True, simplify)
    node = -1
    for number, line in lines:
        node += 1
        if node >= n:
            if line:
                raise GraphFileError(path, number, f"the header announces {n} nodes, but here is one more line.")
            continue
        fields = line.split()[node_fields:]
        if len(fields) % step:
            raise GraphFileError(path, number, "each neighbour must be followed by its edge's weight.")
        for i in range(0, len(fields), step):
            other = numbered_node(path, number, fields[i], n)
            arcs.add(number, node, other, weight_of(path, number, fields[i + 1]) if step == 2 else None)
    if node + 1 < n:
        raise GraphFileError(path, None, f"the header announces {n} nodes, but only {node + 1} lines follow.")
    graph = undirected_from_arcs(path, n, arcs.pairs(), arcs.weight_array(), simplify)
    if graph.num_edges != m and not simplify:
        raise GraphFileError(path, None, f"the header announces {m} edges, but the lines hold {graph.num_edges}.")
    return graph


def read_dimacs(path: FilePath, *, simplify: bool = False) -> Graph:
    """Read a DIMACS graph: comments ``c``, one line ``p edge n m`` (or ``p col``), edges ``e u v`` from 1.

    Parameters
    ----------
    path, simplify
        As in :func:`read_graph`. Many published files list each edge twice: ``simplify=True`` reads them, and then
        the announced number of edges is not checked.

    Raises
    ------
    GraphFileError
        For another line, a missing or second ``p`` line, a node outside 1..n, a self-loop, a repeated edge, or a
        number of edges other than announced.
    """
    announced: tuple[int, int] | None = None
    edges = EdgeCollector(path, False, simplify)
    for number, line in lines_of(path):
        kind, *fields = line.split()
        if kind in ("c", "n"):
            continue
        if kind == "p":
            if announced is not None:
                raise GraphFileError(path, number, "a second 'p' line.")
            if len(fields) != 3 or fields[0] not in ("edge", "col") or not all(map(is_whole, fields[1:])):
                raise GraphFileError(path, number, f"expected 'p edge nodes edges', got {shown(line)}.")
            announced = int(fields[1]), int(fields[2])
        elif kind == "e" and len(fields) == 2:
            if announced is None:
                raise GraphFileError(path, number, "an edge before the line 'p edge nodes edges'.")
            ends = [numbered_node(path, number, field, announced[0]) for field in fields]
            edges.add(number, ends[0], ends[1], None)
        else:
            raise GraphFileError(path, number, f"expected 'c', 'p edge n m' or 'e u v', got {shown(line)}.")
    if announced is None:
        raise GraphFileError(path, None, "no line 'p edge nodes edges'; this is no DIMACS graph.")
    if len(edges) != announced[1] and not simplify:
        raise GraphFileError(
            path, None, f"the 'p' line announces {announced[1]} edges, but {len(edges)} are listed; "
            "simplify=True reads the file as it is.",
        )  # fmt: skip
    return edges.graph(announced[0])


def read_nodes(path: FilePath, graph: Graph) -> IntArray:
    """Read node names, one a line, as numbers of a graph's nodes: a seed set, or a removal order.

    Names are the graph's labels (compared as text) or, where it has none, 0..n-1. Lines that start with ``#`` or ``%``
    are comments.

    Raises
    ------
    GraphFileError
        For a name that is none of the graph's, or a repeated one.
    """
    known = {str(graph.label_of(node)): node for node in range(graph.num_nodes)}
    seen: dict[int, int] = {}
    for number, line in lines_of(path):
        if line.startswith(("#", "%")):
            continue
        if line not in known:
            raise GraphFileError(path, number, f"{shown(line)} is no node of the graph.")
        if known[line] in seen:
            raise GraphFileError(path, number, f"node {shown(line)} repeats line {seen[known[line]]}.")
        seen[known[line]] = number
    return np.array(list(seen), dtype=np.int64)
