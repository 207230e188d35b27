"""Graphs for the tests: named ones as the golden files number them, and hypothesis strategies."""

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from manifoldnorm.gnn.graphs import Graph

NAMED = {
    "karate": nx.karate_club_graph,
    "florentine": nx.florentine_families_graph,
    "lesmis": nx.les_miserables_graph,
    "petersen": nx.petersen_graph,
    "icosahedral": nx.icosahedral_graph,
    "dodecahedral": nx.dodecahedral_graph,
    "desargues": nx.desargues_graph,
    "heawood": nx.heawood_graph,
    "pappus": nx.pappus_graph,
    "tutte": nx.tutte_graph,
    "frucht": nx.frucht_graph,
    "mobius_kantor": nx.moebius_kantor_graph,
    "hoffman_singleton": nx.hoffman_singleton_graph,
    "grid6x6": lambda: nx.grid_2d_graph(6, 6),
    "path10": lambda: nx.path_graph(10),
    "star8": lambda: nx.star_graph(8),
    "kneser_5_2": lambda: nx.kneser_graph(5, 2),
    "turan_13_4": lambda: nx.turan_graph(13, 4),
}


def named_graph(name: str) -> Graph:
    return Graph.from_networkx(nx.Graph(NAMED[name]()))


def random_graph(num_nodes: int, num_edges: int, seed: int, *, directed: bool = False) -> Graph:
    """A graph with about so many edges, drawn fast enough for a million nodes."""
    edges = np.random.default_rng(seed).integers(num_nodes, size=(num_edges, 2))
    if not directed:
        edges = np.sort(edges, axis=1)
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return Graph.from_edges(num_nodes, edges, directed=directed)


@st.composite
def graphs(draw: st.DrawFn, *, max_nodes: int = 12, directed: bool = False) -> Graph:
    n = draw(st.integers(0, max_nodes))
    pairs = [(u, v) for u in range(n) for v in range(n) if (u != v if directed else u < v)]
    density = draw(st.sampled_from([0.15, 0.3, 0.6]))
    chances = draw(st.lists(st.floats(0, 1), min_size=len(pairs), max_size=len(pairs)))
    edges = [pair for pair, chance in zip(pairs, chances) if chance < density]
    return Graph.from_edges(n, edges, directed=directed)
