"""Classical references on the benchmark's test graphs: what every policy is shown beside."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manifoldnorm.gnn.benchmark_data import Instance, test_set
from manifoldnorm.gnn.benchmark_metrics import Spread, draw_worlds, seed_budget, task_metric
from manifoldnorm.gnn.benchmark_plan import TASKS, RunConfig
from manifoldnorm.gnn.benchmark_run import mean_curve
from manifoldnorm.gnn.tasks import dismantling, independent_set

RANDOM_DRAWS = 5
SELECTION_SEED = 6
"""Of the worlds that the greedy reference selects on; it is measured on others."""
EXACT_SECONDS = 20.0

Order = npt.NDArray[np.int64]

BEST_REFERENCE = {"independent_set": "exact", "influence": "lazy greedy", "dismantling": "collective influence"}
"""What the headroom is measured against."""


@dataclass(frozen=True)
class Reference:
    """A classical method on one test set.

    Attributes
    ----------
    task, name, test_set : str
    value : float
        Mean of the task's metric over the test graphs.
    proved : float or None
        Share of the graphs whose value is proved optimal; None for methods that prove nothing.
    curve : tuple of float
        Dismantling: the mean curve at 101 points.
    """

    task: str
    name: str
    test_set: str
    value: float
    proved: float | None = None
    curve: tuple[float, ...] = ()


def compute_references(settings: RunConfig, tasks: tuple[str, ...] = TASKS) -> list[Reference]:
    """Compute all references on the test sets of a preset."""
    found: list[Reference] = []
    for name, count in (("same_size", settings.test_graphs), ("larger", settings.test_graphs_large)):
        instances = test_set(name, count)
        if "independent_set" in tasks:
            found += _independent_set(name, instances)
        if "influence" in tasks:
            found += _influence(name, instances, settings.worlds)
        if "dismantling" in tasks:
            found += _dismantling(name, instances)
    return found


def stored_references(folder: Path, settings: RunConfig, tasks: tuple[str, ...] = TASKS) -> list[Reference]:
    """Read the references of a benchmark's folder, or compute and store them there."""
    path = folder / "references.json"
    key = {"settings": [settings.test_graphs, settings.test_graphs_large, settings.worlds], "tasks": list(tasks)}
    if path.exists():
        content = json.loads(path.read_text())
        if content["key"] == key:
            return [Reference(**{**values, "curve": tuple(values["curve"])}) for values in content["references"]]
    references = compute_references(settings, tasks)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"key": key, "references": [vars(reference) for reference in references]}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
    return references


def random_ties(values: npt.ArrayLike, random: np.random.Generator) -> Order:
    """Order nodes by value, highest first, ties at random."""
    array = np.asarray(values)
    return np.lexsort((random.random(array.size), -array))


def _mean_over_draws(measure: Callable[[Instance, np.random.Generator], float]) -> Callable[[Instance], float]:
    return lambda instance: float(
        np.mean([measure(instance, np.random.default_rng([9, instance.index, draw])) for draw in range(RANDOM_DRAWS)])
    )


def _references(
    task: str, name: str, instances: tuple[Instance, ...], methods: dict[str, Callable[[Instance], float]]
) -> list[Reference]:
    return [
        Reference(task, method, name, float(np.mean([measure(instance) for instance in instances])))
        for method, measure in methods.items()
    ]


def _independent_set(name: str, instances: tuple[Instance, ...]) -> list[Reference]:
    metric = task_metric("independent_set", 0)
    proofs = [independent_set.exact(instance.graph, time_limit=EXACT_SECONDS) for instance in instances]
    sizes = {instance: proof.size / instance.graph.num_nodes for instance, proof in zip(instances, proofs)}
    found = _references(
        "independent_set",
        name,
        instances,
        {
            "random order": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random.permutation(instance.graph.num_nodes))
            ),
            "lowest degree": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random_ties(-instance.graph.degree, random))
            ),
            "minimum-degree greedy": lambda instance: (
                independent_set.greedy(instance.graph).size / instance.graph.num_nodes
            ),
            "local search": lambda instance: (
                independent_set.local_search(instance.graph, generator=0).size / instance.graph.num_nodes
            ),
        },
    )
    proved = float(np.mean([proof.optimal for proof in proofs]))
    return [*found, Reference("independent_set", "exact", name, float(np.mean(list(sizes.values()))), proved)]


def _influence(name: str, instances: tuple[Instance, ...], worlds: int) -> list[Reference]:
    metric = task_metric("influence", worlds)
    assert isinstance(metric, Spread)

    def lazy_greedy(instance: Instance) -> float:
        sketch = draw_worlds(instance, worlds, SELECTION_SEED)
        return metric.of_seeds(instance, sketch.greedy(seed_budget(instance.graph.num_nodes)).nodes)

    return _references(
        "influence",
        name,
        instances,
        {
            "random order": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random.permutation(instance.graph.num_nodes))
            ),
            "highest degree": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random_ties(instance.graph.degree, random))
            ),
            "lazy greedy": lazy_greedy,
        },
    )


def _dismantling(name: str, instances: tuple[Instance, ...]) -> list[Reference]:
    metric = task_metric("dismantling", 0)
    found = _references(
        "dismantling",
        name,
        instances,
        {
            "random order": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random.permutation(instance.graph.num_nodes))
            ),
            "highest degree": _mean_over_draws(
                lambda instance, random: metric.of_order(instance, random_ties(instance.graph.degree, random))
            ),
        },
    )
    for method, order_of_graph in (
        ("adaptive highest degree", dismantling.adaptive_highest_degree),
        ("CoreHD", dismantling.core_highest_degree),
        ("collective influence", dismantling.collective_influence),
    ):
        orders = [order_of_graph(instance.graph) for instance in instances]
        value = float(np.mean([metric.of_order(i, order) for i, order in zip(instances, orders, strict=True)]))
        found.append(Reference("dismantling", method, name, value, None, mean_curve(instances, orders)))
    return found
