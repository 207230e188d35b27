from typing import Any

import networkx as nx
import numpy as np
import pytest

from manifoldnorm.gnn import generators
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.tasks import independent_set

FAMILIES: dict[str, Any] = {
    "erdos_renyi": lambda g: generators.erdos_renyi(80, 0.05, generator=g),
    "barabasi_albert": lambda g: generators.barabasi_albert(80, 3, generator=g),
    "powerlaw_cluster": lambda g: generators.powerlaw_cluster(80, 3, 0.5, generator=g),
    "watts_strogatz": lambda g: generators.watts_strogatz(80, 4, 0.2, generator=g),
    "rb_model": lambda g: generators.rb_model(10, generator=g).graph,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_or_a_generator_gives_the_graph_again_and_another_seed_another(family: str) -> None:
    draw = FAMILIES[family]
    first = draw(3)
    assert np.array_equal(first.edges, draw(np.random.default_rng(3)).edges)
    assert not np.array_equal(first.edges, draw(4).edges)
    random = np.random.default_rng(3)
    draw(random)
    assert not np.array_equal(first.edges, draw(random).edges), "a generator must move on"


def test_families_have_their_defining_features() -> None:
    assert generators.barabasi_albert(100, 3, generator=0).num_edges == 97 * 3
    assert generators.watts_strogatz(100, 6, 0.3, generator=0).num_edges == 300
    sizes = [generators.erdos_renyi(100, 0.1, generator=seed).num_edges for seed in range(50)]
    assert np.mean(sizes) == pytest.approx(495, abs=4 * np.sqrt(4950 * 0.09 / 50))
    clustered = nx.transitivity(generators.powerlaw_cluster(300, 3, 0.9, generator=0).to_networkx())
    plain = nx.transitivity(generators.powerlaw_cluster(300, 3, 0.0, generator=0).to_networkx())
    assert clustered > 2 * plain
    assert generators.erdos_renyi(5, 0.0, generator=0).num_edges == 0
    assert generators.erdos_renyi(0, 0.5, generator=0).num_nodes == 0
    assert generators.erdos_renyi(6, 1.0, generator=0).num_edges == 15


@pytest.mark.parametrize("seed", range(5))
def test_rb_model_hides_a_largest_independent_set(seed: int) -> None:
    instance = generators.rb_model(7, generator=seed)
    graph, size = instance.graph, round(7**0.8)
    assert graph.num_nodes == 7 * size
    assert independent_set.check_independent(graph, instance.hidden).tolist() == instance.hidden.tolist()
    assert [node // size for node in instance.hidden.tolist()] == list(range(7))
    for clique in range(7):
        inside = graph.subgraph(np.arange(clique * size, (clique + 1) * size))
        assert inside.num_edges == size * (size - 1) // 2, "each clique is complete, so alpha is at most 7"
    constraints = round(0.8 / np.log(4 / 3) * 7 * np.log(7))
    between = graph.num_edges - 7 * size * (size - 1) // 2
    assert 0 < between <= constraints * round(0.25 * size**2)
    assert independent_set.exact(graph).size == 7


def test_rb_model_without_constraints_is_cliques() -> None:
    graph = generators.rb_model(4, density=0.0, generator=0).graph
    assert nx.number_connected_components(graph.to_networkx()) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generators.erdos_renyi(-1, 0.5, generator=0), "num_nodes must be at least 0, got -1"),
        (lambda: generators.erdos_renyi(5, 1.5, generator=0), r"probability must lie in \[0, 1\], got 1.5"),
        (lambda: generators.barabasi_albert(3, 3, generator=0), r"edges_per_node must lie in 1\.\.2, got 3"),
        (lambda: generators.barabasi_albert(3, 0, generator=0), "edges_per_node"),
        (lambda: generators.powerlaw_cluster(5, 2, -0.1, generator=0), "probability"),
        (lambda: generators.powerlaw_cluster(2, 3, 0.1, generator=0), "edges_per_node"),
        (lambda: generators.watts_strogatz(10, 3, 0.1, generator=0), "neighbours must be even, got 3"),
        (lambda: generators.watts_strogatz(4, 4, 0.1, generator=0), r"neighbours must lie in 2\.\.3"),
        (lambda: generators.rb_model(1, generator=0), "cliques must be at least 2"),
        (lambda: generators.rb_model(5, alpha=0, generator=0), "alpha must be positive"),
        (lambda: generators.rb_model(5, density=-1, generator=0), "density at least 0"),
        (lambda: generators.rb_model(5, tightness=1.0, generator=0), "only 15 are not both hidden"),
    ],
)
def test_clear_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_results_are_graphs() -> None:
    assert all(isinstance(draw(0), Graph) for draw in FAMILIES.values())
