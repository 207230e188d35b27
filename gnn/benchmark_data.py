"""The benchmark's graphs: seeded random families for training, two fixed test sets, and the node features."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.scale import core_number

RANDOM_CHANNELS = 8
TRAIN_SIZES = (40, 80)
TEST_SIZES = {"same_size": (60, 100), "larger": (200, 300)}
_TEST_SEEDS = {"same_size": 101, "larger": 202}
EXTRA_CHANNELS = {"blind": 0, "constant": 0, "degree": 1, "structure": 3}


@dataclass(frozen=True, eq=False)
class Instance:
    """A graph with what the policies read from it."""

    graph: Graph
    index: int

    @cached_property
    def edge_index(self) -> Tensor:
        """The arcs, int64, shape (2, E)."""
        return self.graph.edge_index

    @cached_property
    def log_degree(self) -> Tensor:
        """log(1 + degree), float32, shape (n, 1)."""
        return torch.log1p(torch.from_numpy(self.graph.degree).to(torch.float32)).unsqueeze(1)

    @cached_property
    def structure(self) -> Tensor:
        """log(1 + degree), clustering coefficient, log(1 + core number); float32, shape (n, 3)."""
        clustering = nx.clustering(nx.Graph(self.graph.edges.tolist()))
        coefficients = torch.tensor([clustering.get(node, 0.0) for node in range(self.graph.num_nodes)])
        cores = torch.log1p(core_number(self.edge_index, self.graph.num_nodes)).to(torch.float32)
        return torch.cat([self.log_degree, coefficients.unsqueeze(1), cores.unsqueeze(1)], dim=1)

    def features(self, track: str, random: np.random.Generator) -> Tensor:
        """Draw the node features of a track, float32, shape (n, `feature_channels`).

        "blind": standard normal numbers. "degree": the same and log(1 + degree). "structure": the same, clustering
        and core number besides. "constant": ones.
        """
        n = self.graph.num_nodes
        if track == "constant":
            return torch.ones(n, RANDOM_CHANNELS)
        noise = torch.from_numpy(random.standard_normal((n, RANDOM_CHANNELS), dtype=np.float32))
        if track == "blind":
            return noise
        return torch.cat([noise, self.log_degree if track == "degree" else self.structure], dim=1)


def feature_channels(track: str) -> int:
    """Count the channels of a feature track."""
    return RANDOM_CHANNELS + EXTRA_CHANNELS[track]


def draw_graph(random: np.random.Generator, sizes: tuple[int, int]) -> Graph:
    """Draw a graph: a random family, size and density.

    Barabasi-Albert (1 to 3 edges a node), Erdos-Renyi (mean degree 3 to 6), Holme-Kim power-law cluster (2 or 3 edges
    a node, triangle probability 0.1 to 0.7) or Watts-Strogatz (4 or 6 neighbours, rewiring 0.1 to 0.3).
    """
    n = int(random.integers(sizes[0], sizes[1] + 1))
    seed = int(random.integers(2**31))
    family = int(random.integers(4))
    if family == 0:
        drawn = nx.barabasi_albert_graph(n, int(random.integers(1, 4)), seed=seed)
    elif family == 1:
        drawn = nx.gnp_random_graph(n, random.uniform(3, 6) / (n - 1), seed=seed)
    elif family == 2:
        drawn = nx.powerlaw_cluster_graph(n, int(random.integers(2, 4)), random.uniform(0.1, 0.7), seed=seed)
    else:
        drawn = nx.watts_strogatz_graph(n, 2 * int(random.integers(2, 4)), random.uniform(0.1, 0.3), seed=seed)
    # By number, not by insertion order: a generator's order of insertion can tell the degree.
    return Graph.from_edges(n, random.permutation(n)[np.array(drawn.edges, dtype=np.int64)])


@lru_cache(maxsize=4)
def training_set(seed: int, count: int) -> tuple[Instance, ...]:
    """Draw the training graphs of a seed (40 to 80 nodes)."""
    random = np.random.default_rng([seed, 11])
    return tuple(Instance(draw_graph(random, TRAIN_SIZES), index) for index in range(count))


@lru_cache(maxsize=4)
def test_set(name: str, count: int) -> tuple[Instance, ...]:
    """Draw a test set, the same for every seed: "same_size" (60 to 100 nodes) or "larger" (200 to 300)."""
    random = np.random.default_rng([_TEST_SEEDS[name], 7])
    return tuple(Instance(draw_graph(random, TEST_SIZES[name]), index) for index in range(count))


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Several graphs as one, disjoint."""

    edge_index: Tensor
    batch: Tensor
    sizes: Tensor
    features: Tensor
    scale: Tensor | None
    log_degree: Tensor

    @classmethod
    def join(cls, instances: list[Instance], features: list[Tensor], scales: list[Tensor] | None) -> "GraphBatch":
        """Put graphs side by side."""
        sizes = torch.tensor([instance.graph.num_nodes for instance in instances])
        starts = (torch.cumsum(sizes, 0) - sizes).tolist()
        edges = [instance.edge_index + start for instance, start in zip(instances, starts, strict=True)]
        return cls(
            edge_index=torch.cat(edges, dim=1),
            batch=torch.repeat_interleave(torch.arange(len(instances)), sizes),
            sizes=sizes,
            features=torch.cat(features),
            scale=None if scales is None else torch.cat(scales),
            log_degree=torch.cat([instance.log_degree for instance in instances]),
        )
