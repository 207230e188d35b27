"""Topology scales: the conventions (in-degree, self-loops, isolated nodes), batches, and networkx as a referee."""

import networkx as nx
import pytest
import torch

from manifoldnorm.gnn import TopologyScale, core_number, degree, relative_pagerank


def both_directions(graph: nx.Graph) -> torch.Tensor:
    edges = torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).t()
    return torch.cat([edges, edges.flip(0)], dim=1)


@pytest.fixture
def graph() -> nx.Graph:
    drawn = nx.gnp_random_graph(40, 0.08, seed=3)
    assert nx.number_of_isolates(drawn) > 0
    return drawn


def test_degree_scale_is_one_over_one_plus_degree(graph: nx.Graph) -> None:
    scale = TopologyScale()(both_directions(graph), 40, dtype=torch.float64)
    expected = torch.tensor([[1 / (1 + graph.degree[node])] for node in range(40)], dtype=torch.float64)
    torch.testing.assert_close(scale, expected, rtol=1e-15, atol=0)


def test_isolated_nodes_have_scale_one() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    for source in ("degree", "core_number"):
        assert TopologyScale(source)(edges, 4)[2:].tolist() == [[1.0], [1.0]]


def test_self_loops_do_not_count() -> None:
    loops = torch.tensor([[0, 1, 0, 2], [1, 0, 0, 2]])
    assert degree(loops, 3).tolist() == [1, 1, 0]
    assert core_number(loops, 3).tolist() == [1, 1, 0]
    torch.testing.assert_close(relative_pagerank(loops, 3), relative_pagerank(loops[:, :2], 3))


def test_directed_graphs_use_the_in_degree() -> None:
    arcs = torch.tensor([[0, 1, 2], [3, 3, 3]])
    assert degree(arcs, 4).tolist() == [0, 0, 0, 3]


def test_core_number_agrees_with_networkx(graph: nx.Graph) -> None:
    expected = nx.core_number(graph)
    assert core_number(both_directions(graph), 40).tolist() == [expected[node] for node in range(40)]


def test_core_number_ignores_direction_and_repeats() -> None:
    triangle = torch.tensor([[0, 1, 2, 0, 0], [1, 2, 0, 1, 1]])
    assert core_number(triangle, 3).tolist() == [2, 2, 2]


@pytest.mark.parametrize("directed", [False, True])
def test_pagerank_agrees_with_networkx(graph: nx.Graph, directed: bool) -> None:
    drawn = nx.gnp_random_graph(40, 0.05, seed=4, directed=True) if directed else graph
    edges = torch.tensor(list(drawn.edges)).t() if directed else both_directions(drawn)
    ranks = nx.pagerank(drawn, alpha=0.85, tol=1e-13, max_iter=1000)
    expected = torch.tensor([40 * ranks[node] for node in range(40)], dtype=torch.float64)
    torch.testing.assert_close(relative_pagerank(edges, 40), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("source", ["degree", "core_number", "pagerank"])
@pytest.mark.parametrize("normalize", [None, "graph"])
def test_a_batch_of_graphs_is_the_graphs_alone(source: str, normalize: str | None) -> None:
    first, second = nx.path_graph(5), nx.star_graph(6)
    scale = TopologyScale(source, normalize=normalize)  # type: ignore[arg-type]
    alone = [scale(both_directions(g), g.number_of_nodes()) for g in (first, second)]
    joined = torch.cat([both_directions(first), both_directions(second) + 5], dim=1)
    # Graph 1 is empty, and numbers need not be below the number of nodes.
    batch = torch.tensor([0] * 5 + [70] * 7)
    torch.testing.assert_close(scale(joined, 12, batch), torch.cat(alone))


def test_unsorted_batch_vector() -> None:
    scale = TopologyScale(normalize="graph")
    edges, batch = torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]]), torch.tensor([1, 0, 1, 0, 1])
    s = scale(edges, 5, batch).squeeze(1)
    for graph in (0, 1):
        assert s[batch == graph].mean().item() == pytest.approx(1, abs=1e-6)


def test_graph_normalisation_keeps_the_ranking(graph: nx.Graph) -> None:
    edges = both_directions(graph)
    plain, normalised = TopologyScale()(edges, 40), TopologyScale(normalize="graph")(edges, 40)
    ratio = (plain / normalised).squeeze(1)
    torch.testing.assert_close(ratio, ratio[:1].expand(40))
    assert normalised.mean().item() == pytest.approx(1, abs=1e-6)


def test_powers_and_offsets() -> None:
    star = both_directions(nx.star_graph(3))
    assert TopologyScale(power=0.5)(star, 4)[0].item() == pytest.approx(0.5)
    assert TopologyScale(offset=2.0)(star, 4)[0].item() == pytest.approx(0.2)


def test_no_nodes() -> None:
    empty = torch.zeros(2, 0, dtype=torch.int64)
    for source in ("degree", "core_number", "pagerank"):
        for normalize in (None, "graph"):
            scale = TopologyScale(source, normalize=normalize)  # type: ignore[arg-type]
            assert scale(empty, 0, torch.zeros(0, dtype=torch.int64)).shape == (0, 1)


def test_no_parameters_and_no_state() -> None:
    assert not list(TopologyScale().parameters())
    assert not TopologyScale().state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "betweenness"}, "source must be"),
        ({"offset": 0.0}, "offset must be positive"),
        ({"power": float("nan")}, "finite"),
        ({"normalize": "batch"}, "normalize must be"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopologyScale(**arguments)  # type: ignore[arg-type]


def test_wrong_edges_are_named() -> None:
    with pytest.raises(ValueError, match="transposed"):
        degree(torch.zeros(5, 2, dtype=torch.int64), 3)
    with pytest.raises(TypeError, match="integers"):
        degree(torch.zeros(2, 5), 3)
    for normalize in ("graph", None):
        with pytest.raises(ValueError, match="batch must have shape"):
            TopologyScale(normalize=normalize)(
                torch.zeros(2, 0, dtype=torch.int64), 3, torch.zeros(2, dtype=torch.int64)
            )
    for node in (-1, 3):
        for function in (degree, core_number, relative_pagerank):
            with pytest.raises(ValueError, match=f"nodes from 0 to 2, as there are 3; got {node}"):
                function(torch.tensor([[0, 1], [1, node]]), 3)
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor; got ndarray"):
        degree(torch.zeros(2, 5, dtype=torch.int64).numpy(), 3)


def test_a_callable_must_stay_positive() -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match="node 1 has -1"):
        TopologyScale(lambda e, n, b: torch.tensor([1.0, -2.0]))(edges, 2)
    with pytest.raises(ValueError, match="one value per node"):
        TopologyScale(lambda e, n, b: torch.ones(3))(edges, 2)
    assert TopologyScale(lambda e, n, b: torch.ones(2, 1))(edges, 2).tolist() == [[0.5], [0.5]]
