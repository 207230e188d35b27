import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings

from manifoldnorm.gnn import readers
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.readers import GraphFileError
from tests.gnn.graph_strategies import graphs

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def as_edge_list(graph: Graph) -> str:
    return "".join(f"{v}\n" for v in range(graph.num_nodes)) + "".join(f"{u} {v}\n" for u, v in graph.edges.tolist())


def as_metis(graph: Graph) -> str:
    rows = [" ".join(str(v + 1) for v in row) for row in graph.neighbour_lists()]
    return "\n".join([f"{graph.num_nodes} {graph.num_edges}", *rows, ""])


def as_dimacs(graph: Graph) -> str:
    edges = "".join(f"e {u + 1} {v + 1}\n" for u, v in graph.edges.tolist())
    return f"c a comment\np edge {graph.num_nodes} {graph.num_edges}\n{edges}"


def as_matrix_market(graph: Graph) -> str:
    edges = "".join(f"{v + 1} {u + 1}\n" for u, v in graph.edges.tolist())
    header = "%%MatrixMarket matrix coordinate pattern symmetric"
    return f"{header}\n{graph.num_nodes} {graph.num_nodes} {graph.num_edges}\n{edges}"


def as_gml(graph: Graph) -> str:
    return "\n".join(nx.generate_gml(graph.to_networkx()))


FORMATS = {".txt": as_edge_list, ".graph": as_metis, ".col": as_dimacs, ".mtx": as_matrix_market, ".gml": as_gml}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
@given(graph=graphs())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_format_gives_the_graph_back(suffix: str, packed: bool, graph: Graph, tmp_path: Path) -> None:
    if graph.num_nodes == 0:
        return
    path = tmp_path / f"graph{suffix}{'.gz' if packed else ''}"
    content = FORMATS[suffix](graph).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    read = readers.read_graph(path)
    assert read.num_nodes == graph.num_nodes
    assert read.edges.tolist() == graph.edges.tolist()
    assert not read.directed


def test_edge_list_separators_comments_weights_and_labels(write: Write) -> None:
    graph = readers.read_edge_list(write("g.csv", "# names\n% too\nbob,alice,0.5\n\nalice;\tcarol 2\ndave\n"))
    assert graph.labels == ("bob", "alice", "carol", "dave")
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.weights is not None
    assert graph.weights.tolist() == [0.5, 0.5, 2, 2]


def test_whole_numbers_are_sorted_and_kept_as_labels(write: Write) -> None:
    graph = readers.read_edge_list(write("g.txt", "100 7\n7 30\n"))
    assert graph.labels == (7, 30, 100)
    assert graph.edges.tolist() == [[0, 1], [0, 2]]
    huge = readers.read_edge_list(write("g.txt", "123456789012345678901234567890 1\n"))
    assert huge.labels == ("123456789012345678901234567890", "1")


def test_directed_edge_list(write: Write) -> None:
    graph = readers.read_graph(write("g.edges", "1 0\n0 1\n2 0\n"), directed=True)
    assert graph.edges.tolist() == [[0, 1], [1, 0], [2, 0]]


def test_simplify_drops_loops_and_repeats_and_keeps_the_first_weight(write: Write) -> None:
    path = write("g.txt", "0 1 5\n1 1 9\n1 0 7\n2 1 3\n")
    graph = readers.read_edge_list(path, simplify=True)
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.weights is not None
    assert graph.weights.tolist() == [5, 5, 3, 3]
    twice = write("g.col", "p edge 3 2\ne 1 2\ne 2 1\ne 2 3\ne 3 2\n")
    assert readers.read_dimacs(twice, simplify=True).num_edges == 2
    looped = write("g.graph", "2 1\n1 2\n1\n")
    assert readers.read_metis(looped, simplify=True).num_edges == 1
    matrix = write("g.mtx", "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4.0\n2 1 5.0\n")
    assert readers.read_matrix_market(matrix, simplify=True).weights.tolist() == [5, 5]  # type: ignore[union-attr]


def test_metis_weights(write: Write) -> None:
    plain = "% a comment\n3 2 001\n2 7\n1 7 3 4\n2 4\n"
    assert readers.read_metis(write("g.graph", plain)).weights.tolist() == [7, 7, 4, 4]  # type: ignore[union-attr]
    # Size, two node weights, then neighbours with edge weights.
    full = "3 2 111 2\n9 1 1 2 7\n9 1 1 1 7 3 4\n9 1 1 2 4\n"
    assert readers.read_metis(write("g.graph", full)).weights.tolist() == [7, 7, 4, 4]  # type: ignore[union-attr]


def test_matrix_market_general_dense_and_directed(tmp_path: Path) -> None:
    matrix = np.array([[0, 2, 0], [2, 0, 3], [0, 3, 0]], dtype=float)
    for name, content in (("sparse.mtx", scipy.sparse.coo_array(matrix)), ("dense.mtx", matrix)):
        scipy.io.mmwrite(tmp_path / name, content, symmetry="general")
        graph = readers.read_graph(tmp_path / name)
        assert graph.weights is not None
        assert graph.edges.tolist() == [[0, 1], [1, 2]]
        assert graph.weights.tolist() == [2, 2, 3, 3]
    scipy.io.mmwrite(tmp_path / "arcs.mtx", scipy.sparse.coo_array(np.triu(matrix)), symmetry="general")
    assert readers.read_graph(tmp_path / "arcs.mtx", directed=True).edges.tolist() == [[0, 1], [1, 2]]
    with pytest.raises(GraphFileError, match=r"edge \(1, 2\) is listed in one direction only"):
        readers.read_graph(tmp_path / "arcs.mtx")


def test_gml_labels_weights_and_directions(tmp_path: Path) -> None:
    drawn = nx.DiGraph([("a", "b", {"weight": 2}), ("b", "c", {"weight": 3})])
    nx.write_gml(drawn, tmp_path / "g.gml")
    graph = readers.read_gml(tmp_path / "g.gml", directed=True)
    assert graph.labels == ("a", "b", "c")
    assert graph.weights is not None
    assert graph.weights.tolist() == [2, 3]
    with pytest.raises(GraphFileError, match="holds a directed graph, but directed=False"):
        readers.read_gml(tmp_path / "g.gml")
    nx.write_gml(nx.path_graph(3), tmp_path / "g.gml")
    with pytest.raises(GraphFileError, match="holds an undirected graph, but directed=True"):
        readers.read_gml(tmp_path / "g.gml", directed=True)
    same_names = 'graph [\n node [\n id 5\n label "x"\n ]\n node [\n id 9\n label "x"\n ]\n]\n'
    (tmp_path / "g.gml").write_text(same_names)
    assert readers.read_gml(tmp_path / "g.gml").labels == (5, 9)


BROKEN = [
    ("g.txt", "0 1\n1 2 3 4\n", ":2: expected 'u v'"),
    ("g.txt", "0 1\n2 2\n", ":2: a self-loop; simplify=True"),
    ("g.txt", "0 1\n1 2\n\n1 0\n", ":4: the edge repeats line 1"),
    ("g.txt", "0 1 x\n", ":1: expected a finite weight, got 'x'"),
    ("g.txt", "0 1 nan\n", ":1: expected a finite weight"),
    ("g.txt", "0 1 2\n1 2\n", ":2: some edges have a weight and some have none"),
    ("g.txt", "0 1\n1 2 2\n", ":2: some edges have a weight and some have none"),
    ("g.txt", "# nothing\n", "no edges and no nodes"),
    ("g.txt", "1 2\n01 3\n", "the same number, such as '1' and '01'"),
    ("g.graph", "", "expected the header 'nodes edges"),
    ("g.graph", "3 two\n", ":1: expected the header"),
    ("g.graph", "2 1 21\n2\n1\n", ":1: the format must be"),
    ("g.graph", "3 1\n2\n1\n", "announces 3 nodes, but only 2 lines"),
    ("g.graph", "2 1\n2\n1\n1\n", ":4: the header announces 2 nodes"),
    ("g.graph", "2 2\n2\n1\n", "announces 2 edges, but the lines hold 1"),
    ("g.graph", "2 1\n3\n1\n", ":2: expected a node from 1 to 2, got '3'"),
    ("g.graph", "2 1\n2\n\n", r"edge \(1, 2\) is listed in one direction only"),
    ("g.graph", "2 1\n1 2\n1\n", ":2: a self-loop"),
    ("g.graph", "2 1\n2 2\n1\n", ":2: the edge repeats line 2"),
    ("g.graph", "2 1 1\n2 5\n1 6\n", r"edge \(1, 2\) has different weights"),
    ("g.graph", "2 1 1\n2\n1 6\n", ":2: each neighbour must be followed by its edge's weight"),
    ("g.col", "e 1 2\n", ":1: an edge before the line 'p edge"),
    ("g.col", "c only\n", "no line 'p edge nodes edges'"),
    ("g.col", "p edge 2 1\np edge 2 1\n", ":2: a second 'p' line"),
    ("g.col", "p sp 2 1\n", ":1: expected 'p edge nodes edges', got 'p sp 2 1'"),
    ("g.col", "p edge 2 1\ne 1 0\n", ":2: expected a node from 1 to 2, got '0'"),
    ("g.col", "p edge 2 1\ne 1 1\n", ":2: a self-loop"),
    ("g.col", "p edge 2 2\ne 1 2\ne 2 1\n", ":3: the edge repeats line 2"),
    ("g.col", "p edge 2 2\ne 1 2\n", "announces 2 edges, but 1 are listed"),
    ("g.col", "p edge 2 1\na 1 2 5\n", ":2: expected 'c', 'p edge n m' or 'e u v'"),
    ("g.mtx", "1 2\n", "not a Matrix Market file"),
    ("g.mtx", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n9 1\n", ":3: not a Matrix Market file"),
    ("g.mtx", "%%MatrixMarket matrix coordinate pattern general\n2 3 1\n1 2\n", r"is square, got shape \(2, 3\)"),
    ("g.mtx", "%%MatrixMarket matrix coordinate complex symmetric\n2 2 1\n2 1 1 1\n", "complex values"),
    ("g.mtx", "%%MatrixMarket matrix coordinate pattern symmetric\n2 2 1\n1 1\n", "node 0 has a self-loop"),
    ("g.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 3\n2 1 4\n", "different weights"),
    ("g.gml", "graph [\n node [\n id 1 ]\n oops\n]\n", ":5: not a GML file"),
    ("g.gml", "graph [\n node [ id 1 ]\n edge [ source 1 target 1 ]\n]\n", "self-loop"),
    ("g.xyz", "0 1\n", "'.xyz' tells no graph format"),
]


@pytest.mark.parametrize(("name", "text", "message"), BROKEN)
def test_broken_files_are_named_with_their_line(write: Write, name: str, text: str, message: str) -> None:
    path = write(name, text)
    with pytest.raises(GraphFileError, match=message) as caught:
        readers.read_graph(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("name", ["g.txt", "g.graph", "g.col", "g.mtx", "g.gml", "g.txt.gz", "g.mtx.gz", "g.gml.gz"])
def test_binary_files_and_missing_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        readers.read_graph(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x00\xff\xfe\x80" * 50)
    with pytest.raises(GraphFileError):
        readers.read_graph(tmp_path / name)


def test_undirected_formats_refuse_directed(write: Write) -> None:
    with pytest.raises(GraphFileError, match=r"a \.col file holds an undirected graph"):
        readers.read_graph(write("g.col", "p edge 1 0\n"), directed=True)


def test_node_files(write: Write) -> None:
    graph: Any = Graph.from_networkx(nx.Graph([("a", "b"), ("b", "c")]))
    assert readers.read_nodes(write("order.txt", "# best first\nc\n\na\n"), graph).tolist() == [2, 0]
    with pytest.raises(GraphFileError, match=r"order\.txt:2: 'z' is no node of the graph"):
        readers.read_nodes(write("order.txt", "a\nz\n"), graph)
    with pytest.raises(GraphFileError, match=r"order\.txt:3: node 'a' repeats line 1"):
        readers.read_nodes(write("order.txt", "a\nb\na\n"), graph)
    plain = Graph.from_edges(3, [(0, 1)])
    assert readers.read_nodes(write("order.txt", "2\n0\n"), plain).tolist() == [2, 0]
