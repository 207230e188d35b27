import json
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifoldnorm.gnn.generators import erdos_renyi, rb_model
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks import independent_set
from manifoldnorm.gnn.tasks.set_exact import _clique_partition_size, _edge_clique_cover, _solve_integer_programme
from tests.conftest import GOLDEN
from tests.gnn.graph_strategies import graphs, named_graph, random_graph

CASES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "gnn_mis.json").read_text())


def golden_graph(name: str) -> Graph:
    case = CASES[name]
    graph = Graph.from_edges(case["n"], case["edges"]) if "edges" in case else named_graph(name)
    assert (graph.num_nodes, graph.num_edges) == (case["n"], case["m"])
    return graph


def independence_number(graph: Graph) -> int:
    """Largest clique of the complement, by networkx."""
    return len(nx.max_weight_clique(nx.complement(graph.to_networkx()), weight=None)[0])


@pytest.mark.parametrize("name", CASES)
def test_golden_values(name: str) -> None:
    graph, case = golden_graph(name), CASES[name]
    best = independent_set.exact(graph)
    assert (best.size, best.bound, best.optimal, best.gap) == (case["alpha"], case["alpha"], True, 0)
    assert independent_set.greedy(graph).size == case["greedy_mindeg"]
    if "deg_order_decode" in case:
        assert independent_set.decode(graph, -graph.degree).size == case["deg_order_decode"]


@given(graphs(), st.randoms())
def test_decode_takes_the_best_free_node(graph: Graph, random: Any) -> None:
    scores = np.array([random.choice([0.0, 1.0, 2.0]) for _ in range(graph.num_nodes)])
    taken: set[int] = set()
    for node in sorted(range(graph.num_nodes), key=lambda i: (-scores[i], i)):
        if not taken & set(graph.neighbours(node).tolist()):
            taken.add(node)
    found = independent_set.decode(graph, torch.tensor(scores).unsqueeze(1))
    assert set(found.nodes.tolist()) == taken
    assert independent_set.is_maximal(graph, found.nodes)
    assert found.bound is None
    assert not found.optimal
    assert found.gap is None


@given(graphs(), st.floats(0.01, 1))
def test_adaptive_decode_is_valid_and_scores_once_with_fraction_one(graph: Graph, fraction: float) -> None:
    calls = []

    def score(rest: Graph) -> np.ndarray:
        calls.append(rest.num_nodes)
        return -rest.degree

    found = independent_set.decode_adaptive(graph, score, fraction=fraction)
    assert independent_set.is_maximal(graph, found.nodes)
    assert calls == sorted(calls, reverse=True)
    if fraction == 1 and graph.num_nodes:
        assert calls == [graph.num_nodes]
        assert found.nodes.tolist() == independent_set.decode(graph, -graph.degree).nodes.tolist()


@given(graphs())
def test_one_node_a_round_by_degree_is_the_minimum_degree_greedy(graph: Graph) -> None:
    one_a_round = independent_set.decode_adaptive(graph, lambda rest: -rest.degree, fraction=1e-9)
    assert one_a_round.nodes.tolist() == independent_set.greedy(graph).nodes.tolist()


@given(graphs(max_nodes=14))
@settings(max_examples=200)
def test_exact_equals_the_clique_of_the_complement(graph: Graph) -> None:
    found = independent_set.exact(graph)
    assert found.optimal
    assert found.size == found.bound == (independence_number(graph) if graph.num_nodes else 0)
    assert independent_set.is_maximal(graph, found.nodes)


@given(graphs(max_nodes=14))
def test_integer_programme_and_its_bounds_without_reductions(graph: Graph) -> None:
    if graph.num_edges == 0:
        return
    alpha = independence_number(graph)
    found, bound = _solve_integer_programme(graph, 60.0)
    assert found is not None
    assert len(independent_set.check_independent(graph, found)) == alpha == bound
    assert _clique_partition_size(graph) >= alpha
    cliques = _edge_clique_cover(graph)
    covered = {(a, b) for clique in cliques for a in clique for b in clique if a < b}
    assert covered == set(map(tuple, graph.edges.tolist()))


@given(graphs(), st.integers(0, 1000))
def test_local_search_never_loses_and_leaves_no_swap(graph: Graph, seed: int) -> None:
    start = independent_set.decode(graph, graph.degree).nodes
    descended = independent_set.local_search(graph, generator=seed, iterations=0, start=start)
    searched = independent_set.local_search(graph, generator=seed, iterations=30, start=start)
    assert len(start) <= descended.size <= searched.size
    members = set(descended.nodes.tolist())
    around = [set(graph.neighbours(node).tolist()) for node in range(graph.num_nodes)]
    for node in members:
        loose = [v for v in around[node] if around[v] & members == {node}]
        assert all(v in around[u] for u in loose for v in loose if u != v), "a (1, 2)-swap is left"


def test_local_search_repeats_with_its_seed_and_beats_greedy() -> None:
    graph = erdos_renyi(300, 8 / 299, generator=3)
    sizes = [independent_set.local_search(graph, generator=seed).size for seed in range(3)]
    again = independent_set.local_search(graph, generator=np.random.default_rng(1))
    assert again.nodes.tolist() == independent_set.local_search(graph, generator=1).nodes.tolist()
    assert min(sizes) > independent_set.greedy(graph).size


def test_search_and_proof_find_the_hidden_set_of_the_rb_model() -> None:
    instance = rb_model(8, generator=0)
    found = independent_set.exact(instance.graph, time_limit=60)
    assert found.optimal
    assert found.size == len(instance.hidden) == 8


def test_running_out_of_time_gives_an_incumbent_and_a_bound_but_no_claim() -> None:
    graph = erdos_renyi(250, 12 / 249, generator=0)
    found = independent_set.exact(graph, time_limit=0.2)
    assert independent_set.is_maximal(graph, found.nodes)
    assert found.bound is not None
    assert found.gap is not None
    assert found.gap > 0
    assert not found.optimal
    assert found.size >= independent_set.greedy(graph).size


def test_components_are_solved_apart() -> None:
    petersen = nx.petersen_graph()
    graph = Graph.from_networkx(nx.disjoint_union_all([petersen] * 5 + [nx.path_graph(4), nx.empty_graph(3)]))
    assert independent_set.exact(graph).size == 5 * 4 + 2 + 3


def test_empty_and_edgeless_graphs() -> None:
    nothing, lonely = Graph.from_edges(0, []), Graph.from_edges(3, [])
    for graph, size in ((nothing, 0), (lonely, 3)):
        for found in (
            independent_set.decode(graph, np.zeros(graph.num_nodes)),
            independent_set.decode_adaptive(graph, lambda rest: np.zeros(rest.num_nodes)),
            independent_set.greedy(graph),
            independent_set.local_search(graph, generator=0, iterations=5),
            independent_set.exact(graph),
        ):
            assert found.size == size


def test_star_with_one_node_outside_the_set() -> None:
    star = Graph.from_edges(50, [(0, i) for i in range(1, 50)])
    assert independent_set.local_search(star, generator=0, iterations=200, start=[0]).size == 49


def test_clear_errors() -> None:
    path = Graph.from_edges(3, [(0, 1), (1, 2)])
    directed = Graph.from_edges(2, [(0, 1)], directed=True)
    for call in (
        lambda: independent_set.decode(directed, [0, 0]),
        lambda: independent_set.decode_adaptive(directed, lambda rest: rest.degree),
        lambda: independent_set.greedy(directed),
        lambda: independent_set.local_search(directed, generator=0),
        lambda: independent_set.exact(directed),
    ):
        with pytest.raises(ValueError, match="undirected graphs, got a directed one"):
            call()
    with pytest.raises(ValueError, match="0 and 1 are joined"):
        independent_set.check_independent(path, [0, 1])
    with pytest.raises(ValueError, match="0 and 1 are joined"):
        independent_set.local_search(path, generator=0, start=[1, 0])
    with pytest.raises(ValueError, match="scores must not be NaN"):
        independent_set.decode(path, [0, np.nan, 1])
    with pytest.raises(ValueError, match="fraction must lie"):
        independent_set.decode_adaptive(path, lambda rest: rest.degree, fraction=0)
    with pytest.raises(ValueError, match="time_limit must be positive"):
        independent_set.exact(path, time_limit=0)
    with pytest.raises(ValueError, match="iterations must be at least 0"):
        independent_set.local_search(path, generator=0, iterations=-1)


@pytest.mark.slow
def test_large_graphs() -> None:
    graph = random_graph(200_000, 600_000, 0)
    by_degree = independent_set.decode(graph, -graph.degree)
    assert by_degree.size < independent_set.greedy(graph).size
