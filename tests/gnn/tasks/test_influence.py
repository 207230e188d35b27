import json
import time
import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks import influence
from manifoldnorm.gnn.tasks.influence import LiveEdgeWorlds, ReverseReachableSets, Spread
from tests.conftest import GOLDEN
from tests.gnn.graph_strategies import graphs, named_graph, random_graph

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "gnn_ic.json").read_text())
SAMPLES = 20_000


def case_name(case: dict[str, Any]) -> str:
    return f"{case['name']}-{case['p'] if isinstance(case['p'], float) else 'each'}"


def directed_graph(case: dict[str, Any]) -> Graph:
    chances = np.broadcast_to(case["p"], len(case["edges"]))
    return Graph.from_edges(case["n"], case["edges"], directed=True, probabilities=chances)


def within_four_errors(estimate: Spread, exact: float) -> bool:
    # A seed that always reaches everything has no spread of the estimate, but sums round.
    return abs(estimate.value - exact) <= 4 * estimate.standard_error + 1e-9


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_golden_spreads(case: dict[str, Any]) -> None:
    graph, seeds = directed_graph(case), case["seeds"]
    assert influence.exact_spread(graph, seeds).value == pytest.approx(case["spread"], abs=1e-12)
    assert within_four_errors(influence.spread(graph, seeds, samples=SAMPLES, generator=1), case["spread"])
    sets = influence.sample_reverse_reachable_sets(graph, SAMPLES, generator=2)
    assert within_four_errors(sets.spread(seeds), case["spread"])


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if isinstance(c["p"], float) and not c["name"].startswith("directed")],
    ids=case_name,
)
def test_golden_spreads_with_one_coin_an_edge(case: dict[str, Any]) -> None:
    graph = influence.uniform(directed_graph(case).to_undirected(), case["p"])
    assert influence.exact_spread(graph, case["seeds"]).value == pytest.approx(case["spread"], abs=1e-12)
    worlds = influence.sample_worlds(graph, SAMPLES, generator=3)
    assert within_four_errors(worlds.spread(case["seeds"]), case["spread"])


@given(graphs(max_nodes=6), st.integers(0, 10_000))
@settings(max_examples=50)
def test_three_estimators_and_enumeration_agree(graph: Graph, seed: int) -> None:
    if graph.num_nodes == 0 or graph.num_edges > 9:
        return
    random = np.random.default_rng(seed)
    seeds = random.permutation(graph.num_nodes)[: 1 + graph.num_nodes // 3]
    model = influence.trivalency(graph, generator=random, values=(0.2, 0.5, 0.9))
    exact = influence.exact_spread(model, seeds).value
    both_ways = Graph.from_edges(
        graph.num_nodes,
        np.stack([model.tails, model.indices], 1),
        directed=True,
        probabilities=model.probabilities,
    )
    assert influence.exact_spread(both_ways, seeds).value == pytest.approx(exact, abs=1e-12)
    for estimate in (
        influence.spread(model, seeds, samples=4000, generator=random),
        influence.sample_worlds(model, 4000, generator=random).spread(seeds),
        influence.sample_reverse_reachable_sets(model, 4000, generator=random).spread(seeds),
    ):
        # Five errors: this is some hundred comparisons.
        assert abs(estimate.value - exact) <= 5 * estimate.standard_error + 1e-9


@given(graphs(max_nodes=6, directed=True), st.integers(0, 10_000))
@settings(max_examples=50)
def test_weighted_cascade_of_directed_graphs(graph: Graph, seed: int) -> None:
    if graph.num_nodes == 0 or graph.num_arcs > 14:
        return
    model = influence.weighted_cascade(graph)
    exact = influence.exact_spread(model, [0]).value
    for estimate in (
        influence.spread(model, [0], samples=4000, generator=seed),
        influence.sample_reverse_reachable_sets(model, 4000, generator=seed).spread([0]),
    ):
        assert abs(estimate.value - exact) <= 5 * estimate.standard_error + 1e-9


def test_standard_errors_are_honest() -> None:
    graph = influence.uniform(named_graph("karate"), 0.15)
    for measure in (
        lambda seed: influence.spread(graph, [0, 33], samples=200, generator=seed),
        lambda seed: influence.sample_worlds(graph, 200, generator=seed).spread([0, 33]),
        lambda seed: influence.sample_reverse_reachable_sets(graph, 200, generator=seed).spread([0, 33]),
    ):
        estimates = [measure(seed) for seed in range(200)]
        actual = np.std([estimate.value for estimate in estimates], ddof=1)
        # The standard deviation of 200 numbers is known to 5 %.
        assert np.mean([estimate.standard_error for estimate in estimates]) == pytest.approx(actual, rel=0.2)


def test_probability_models() -> None:
    graph = Graph.from_edges(4, [(0, 1), (0, 2), (0, 3)])
    assert influence.uniform(graph, 0.25).probabilities.tolist() == [0.25] * 6  # type: ignore[union-attr]
    cascade = influence.weighted_cascade(graph)
    assert cascade.probabilities is not None
    assert cascade.probabilities.tolist() == [1, 1, 1, 1 / 3, 1 / 3, 1 / 3]
    assert not cascade.has_symmetric_probabilities
    arcs = Graph.from_edges(3, [(0, 2), (1, 2)], directed=True)
    assert influence.weighted_cascade(arcs).probabilities.tolist() == [0.5, 0.5]  # type: ignore[union-attr]
    drawn = influence.trivalency(random_graph(200, 600, 0), generator=0)
    assert drawn.has_symmetric_probabilities
    assert set(drawn.probabilities.tolist()) == {0.1, 0.01, 0.001}  # type: ignore[union-attr]
    weighted = Graph.from_edges(3, [(0, 1), (1, 2)], weights=[3, 4], labels=["a", "b", "c"])
    kept = influence.trivalency(weighted, generator=0)
    assert kept.labels == weighted.labels
    assert kept.weights is not None
    assert kept.weights.tolist() == [3, 3, 4, 4]
    assert influence.trivalency(arcs, generator=0).probabilities.shape == (2,)  # type: ignore[union-attr]


def plain_greedy(num_nodes: int, k: int, value: Any) -> list[int]:
    chosen: list[int] = []
    for _ in range(k):
        rest = [v for v in range(num_nodes) if v not in chosen]
        chosen.append(min(rest, key=lambda v: (-value([*chosen, v]), v)))
    return chosen


@given(graphs(max_nodes=8), st.integers(1, 8), st.integers(0, 100))
def test_lazy_greedy_equals_plain_greedy_on_the_same_worlds(graph: Graph, k: int, seed: int) -> None:
    if graph.num_nodes == 0:
        return
    k = min(k, graph.num_nodes)
    worlds = influence.sample_worlds(influence.uniform(graph, 0.4), 30, generator=seed)
    picked = worlds.greedy(k)
    assert picked.nodes.tolist() == plain_greedy(
        graph.num_nodes, k, lambda s: round(worlds.spread(s).value * worlds.num_worlds)
    )
    sets = influence.sample_reverse_reachable_sets(influence.weighted_cascade(graph), 30, generator=seed)
    covered, bound = sets.cover(k)
    assert covered.tolist() == plain_greedy(graph.num_nodes, k, lambda s: sets.hits(np.array(s)))
    assert sets.greedy(k).nodes.tolist() == covered.tolist()
    best = max(sets.hits(np.array(s)) for s in combinations(range(graph.num_nodes), k))
    assert best <= bound <= len(sets)


def test_worlds_count_components() -> None:
    graph = Graph.from_edges(5, [(0, 1), (1, 2), (3, 4)], probabilities=[1.0, 1.0, 0.0])
    worlds = influence.sample_worlds(graph, 7, generator=0)
    assert worlds.spread([0]).value == 3
    assert worlds.spread([0, 2]).value == 3
    assert worlds.spread([3]).value == 1
    assert worlds.spread([3, 4, 1]).value == 5
    assert worlds.spread([]).value == 0
    assert worlds.spread([0]).standard_error == 0
    assert worlds.greedy(3).nodes.tolist() == [0, 3, 4]
    # The ninth and tenth pick gain nothing; nodes must still be distinct.
    assert sorted(worlds.greedy(5).nodes.tolist()) == [0, 1, 2, 3, 4]


def test_greedy_reaches_the_best_known_spread_of_karate() -> None:
    graph = influence.uniform(named_graph("karate"), 0.1)
    found = influence.greedy(graph, 3, generator=0, evaluation_samples=SAMPLES)
    # The exhaustive optimum over 50,000 reverse-reachable sets is 8.13.
    assert found.value > 8.0
    by_degree = influence.spread(graph, influence.highest_degree(graph, 3), samples=SAMPLES, generator=0)
    assert found.value >= by_degree.value - 4 * by_degree.standard_error
    cascade = influence.weighted_cascade(named_graph("karate"))
    assert set(influence.greedy(cascade, 2, generator=0).nodes.tolist()) == {0, 33}


def test_guarantee_holds_against_the_exhaustive_optimum() -> None:
    graph = influence.uniform(random_graph(9, 12, 4, directed=True), 0.4)
    best = max(influence.exact_spread(graph, list(pair)).value for pair in combinations(range(9), 2))
    for seed in range(20):
        found = influence.greedy_with_guarantee(graph, 2, epsilon=0.1, delta=0.01, generator=seed)
        assert found.bound is not None
        assert influence.exact_spread(graph, found.nodes).value >= (1 - 1 / np.e - 0.1) * best
        assert found.bound >= best


def test_seeds_repeat_and_the_estimate_is_independent_of_the_choice() -> None:
    graph = influence.uniform(random_graph(300, 900, 0), 0.1)
    first, second = (influence.greedy(graph, 5, generator=7) for _ in range(2))
    assert first.nodes.tolist() == second.nodes.tolist()
    assert first.value == second.value
    sketch = influence.sample_worlds(graph, 20, generator=0).greedy(10)
    fresh = influence.spread(graph, sketch.nodes, samples=4000, generator=1)
    assert fresh.value < sketch.value, "a choice looks better on the 20 worlds that it fits"


def test_scores_and_degrees_pick_seeds_with_ties_by_index() -> None:
    graph = Graph.from_edges(4, [(1, 0), (1, 2), (3, 2)], directed=True)
    assert influence.highest_degree(graph, 2).tolist() == [1, 3]
    assert influence.top_scores(graph, torch.tensor([[1.0], [2.0], [2.0], [0.0]]), 3).tolist() == [1, 2, 0]


def test_edge_cases() -> None:
    lonely = influence.uniform(Graph.from_edges(3, []), 0.5)
    assert influence.spread(lonely, [0, 2], generator=0).value == 2
    assert influence.exact_spread(lonely, [1]).value == 1
    assert influence.greedy(lonely, 3, generator=0).nodes.tolist() == [0, 1, 2]
    assert influence.spread(lonely, [], generator=0).value == 0
    nothing = influence.uniform(Graph.from_edges(0, []), 0.5)
    assert influence.spread(nothing, [], generator=0).value == 0
    certain = influence.uniform(Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)]), 1.0)
    assert influence.spread(certain, [0], generator=0).value == 4
    assert influence.spread(certain, [0], generator=0).standard_error == 0


def test_clear_errors() -> None:
    plain = Graph.from_edges(3, [(0, 1), (1, 2)], weights=[0.5, 0.5])
    graph = influence.uniform(plain, 0.5)
    for call in (
        lambda: influence.spread(plain, [0], generator=0),
        lambda: influence.exact_spread(plain, [0]),
        lambda: influence.greedy(plain, 1, generator=0),
        lambda: influence.greedy_with_guarantee(plain, 1, epsilon=0.1, delta=0.1, generator=0),
        lambda: influence.sample_worlds(plain, generator=0),
        lambda: influence.sample_reverse_reachable_sets(plain, 10, generator=0),
    ):
        with pytest.raises(ValueError, match=r"no activation probabilities \(its weights are not probabilities\)"):
            call()
    for k in (0, 4):
        with pytest.raises(ValueError, match=r"k must lie in 1\.\.3"):
            influence.greedy(graph, k, generator=0)
        with pytest.raises(ValueError, match=r"k must lie in 1\.\.3"):
            influence.highest_degree(graph, k)
    with pytest.raises(ValueError, match="node 1 is repeated"):
        influence.spread(graph, [1, 1], generator=0)
    with pytest.raises(ValueError, match=r"nodes must lie in 0\.\.2"):
        influence.spread(graph, [3], generator=0)
    with pytest.raises(ValueError, match="samples must be at least 2"):
        influence.spread(graph, [0], samples=1, generator=0)
    with pytest.raises(ValueError, match="worlds must be at least 2, got 0"):
        influence.greedy(graph, 1, samples=0, generator=0)
    with pytest.raises(ValueError, match="worlds must be at least 2"):
        influence.sample_worlds(graph, 1, generator=0)
    with pytest.raises(ValueError, match="sets must be at least 1"):
        influence.sample_reverse_reachable_sets(graph, 0, generator=0)
    with pytest.raises(ValueError, match="no nodes to draw a root"):
        influence.sample_reverse_reachable_sets(influence.uniform(Graph.from_edges(0, []), 0.5), 9, generator=0)
    with pytest.raises(ValueError, match="one probability an edge"):
        influence.sample_worlds(influence.weighted_cascade(plain), generator=0)
    with pytest.raises(ValueError, match="take 1200 bytes, memory_limit is 1000"):
        influence.sample_worlds(graph, 100, generator=0, memory_limit=1000)
    with pytest.raises(ValueError, match="at most 20 random edges, got 78"):
        influence.exact_spread(influence.uniform(named_graph("karate"), 0.1), [0])
    with pytest.raises(ValueError, match="epsilon must lie"):
        influence.greedy_with_guarantee(graph, 1, epsilon=0.7, delta=0.1, generator=0)
    with pytest.raises(ValueError, match="delta must lie"):
        influence.greedy_with_guarantee(graph, 1, epsilon=0.1, delta=1.0, generator=0)
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\]"):
        influence.uniform(plain, 1.5)


def test_public_sketches_are_exported() -> None:
    graph = influence.uniform(Graph.from_edges(2, [(0, 1)]), 0.5)
    assert isinstance(influence.sample_worlds(graph, 2, generator=0), LiveEdgeWorlds)
    assert isinstance(influence.sample_reverse_reachable_sets(graph, 2, generator=0), ReverseReachableSets)


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.1, 0.3])
def test_spread_at_scale_is_fast_and_bounded_in_memory(probability: float) -> None:
    # Below and above the percolation threshold: cascades of a hundred and of seventy thousand nodes.
    graph = influence.uniform(random_graph(100_000, 300_000, 0), probability)
    start = time.process_time()
    estimate = influence.spread(graph, np.arange(50), samples=1000, generator=0)
    assert time.process_time() - start < 60
    peaks = []
    for samples in (100, 200):
        tracemalloc.start()
        influence.spread(graph, np.arange(50), samples=samples, generator=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 500e6
    assert peaks[1] < 1.2 * peaks[0] + 10e6, "memory must not grow with the number of samples"
    assert estimate.standard_error < 0.01 * estimate.value


@pytest.mark.slow
def test_greedy_at_scale() -> None:
    graph = influence.uniform(random_graph(100_000, 300_000, 0), 0.1)
    found = influence.greedy(graph, 50, generator=0)
    by_degree = influence.spread(graph, influence.highest_degree(graph, 50), generator=1)
    assert found.value > by_degree.value
