"""How the benchmark measures an order of the nodes, for each of the three tasks."""

from abc import ABC, abstractmethod
from functools import lru_cache
from math import ceil
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from manifoldnorm.gnn.benchmark_data import Instance
from manifoldnorm.gnn.tasks import dismantling, independent_set, influence

PROBABILITY = 0.1
SEED_FRACTION = 0.05
WORLD_SEED = 5

Order = npt.NDArray[np.int64]


def seed_budget(num_nodes: int) -> int:
    """Give the number of seeds of the influence task: five per cent of the nodes, rounded up."""
    return max(1, ceil(SEED_FRACTION * num_nodes))


class TaskMetric(ABC):
    """A task's metric.

    Attributes
    ----------
    orientation : int
        +1 if more is better, -1 if less is.
    title : str
    """

    orientation: int
    title: str

    @abstractmethod
    def of_order(self, instance: Instance, order: Order) -> float:
        """Measure an order of the nodes, the best first."""


class IndependentSetSize(TaskMetric):
    """Size of the greedily decoded independent set over the number of nodes."""

    orientation = 1
    title = "independent set, size / n"

    def of_order(self, instance: Instance, order: Order) -> float:
        """Decode an order."""
        rank = np.empty(order.size)
        rank[order] = np.arange(order.size, 0, -1)
        return independent_set.decode(instance.graph, rank).size / order.size


class Spread(TaskMetric):
    """Expected share of nodes that a cascade (p = 0.1) from the first five per cent reaches, on fixed worlds."""

    orientation = 1
    title = "influence, spread / n"

    def __init__(self, worlds: int) -> None:
        self.worlds = worlds
        self._sampled: WeakKeyDictionary[Instance, influence.LiveEdgeWorlds] = WeakKeyDictionary()

    def of_order(self, instance: Instance, order: Order) -> float:
        """Estimate the spread of the first nodes of an order."""
        return self.of_seeds(instance, order[: seed_budget(order.size)])

    def of_seeds(self, instance: Instance, seeds: Order) -> float:
        """Estimate the spread of a seed set."""
        if instance not in self._sampled:
            self._sampled[instance] = draw_worlds(instance, self.worlds, WORLD_SEED)
        return self._sampled[instance].spread(seeds).value / instance.graph.num_nodes


def draw_worlds(instance: Instance, worlds: int, seed: int) -> influence.LiveEdgeWorlds:
    """Sample the live-edge worlds of a graph; other seeds give independent ones."""
    return influence.sample_worlds(
        influence.uniform(instance.graph, PROBABILITY),
        worlds,
        generator=np.random.default_rng([seed, instance.index, instance.graph.num_nodes]),
    )


class Robustness(TaskMetric):
    """The area R under the curve of the largest component, all nodes removed in one static order."""

    orientation = -1
    title = "dismantling, R"

    def of_order(self, instance: Instance, order: Order) -> float:
        """Measure a removal order."""
        return dismantling.curve(instance.graph, order).robustness()


@lru_cache(maxsize=8)
def task_metric(task: str, worlds: int) -> TaskMetric:
    """Give a task's metric; the sampled worlds of each graph are shared by all that use the same one."""
    if task == "independent_set":
        return IndependentSetSize()
    if task == "influence":
        return Spread(worlds)
    return Robustness()
