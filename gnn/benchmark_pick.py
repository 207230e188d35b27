"""Nodes of a user's own graph: chosen by a trained policy or a classical method, and measured either way."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_data import Instance
from manifoldnorm.gnn.benchmark_metrics import PROBABILITY, seed_budget
from manifoldnorm.gnn.benchmark_plan import TASKS, RunConfig
from manifoldnorm.gnn.benchmark_training import build_policy
from manifoldnorm.gnn.checks import check_budget, check_nodes
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.policy import NodePolicy
from manifoldnorm.gnn.tasks import dismantling, independent_set, influence

Nodes = npt.NDArray[np.int64]
Selection = independent_set.IndependentSet | influence.Spread | dismantling.DismantlingCurve

EVALUATION_WORLDS = 1000
"""Worlds that an influence is estimated with, independent of those that a method selected on."""


def _greedy_seeds(graph: Graph, k: int, generator: np.random.Generator) -> Nodes:
    return influence.greedy(graph, k, generator=generator).nodes


METHODS: dict[str, dict[str, Callable[[Graph, int, np.random.Generator], Nodes]]] = {
    "independent_set": {
        "greedy": lambda graph, k, generator: independent_set.greedy(graph).nodes,
        "local_search": lambda graph, k, generator: independent_set.local_search(graph, generator=generator).nodes,
        "lowest_degree": lambda graph, k, generator: independent_set.decode(graph, -graph.degree).nodes,
    },
    "influence": {
        "greedy": _greedy_seeds,
        "highest_degree": lambda graph, k, generator: influence.highest_degree(graph, k),
    },
    "dismantling": {
        "collective_influence": lambda graph, k, generator: dismantling.collective_influence(graph),
        "core_highest_degree": lambda graph, k, generator: dismantling.core_highest_degree(graph),
        "adaptive_highest_degree": lambda graph, k, generator: dismantling.adaptive_highest_degree(graph),
        "highest_degree": lambda graph, k, generator: dismantling.highest_degree(graph),
    },
}
"""Classical methods of each task; the first is the default. The independent set also has "exact"."""


@dataclass(frozen=True)
class Policy:
    """A trained policy and the run that it comes from."""

    network: NodePolicy
    config: RunConfig


def save_policy(network: NodePolicy, config: RunConfig, path: Path) -> None:
    """Save a trained policy with its configuration."""
    torch.save({"config": asdict(config), "state": network.state_dict()}, path)


def load_policy(path: Path) -> Policy:
    """Load a policy that `save_policy` wrote; reads tensors and plain values only.

    Raises
    ------
    ValueError
        If the file is no saved policy.
    """
    try:
        content = torch.load(path, weights_only=True)
        config = RunConfig.from_dict(content["config"])
        network = build_policy(config)
        network.load_state_dict(content["state"])
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is no policy saved by 'manifoldnorm select run --keep-policies': {error}") from error
    return Policy(network.eval(), config)


@torch.inference_mode()
def score_nodes(policy: Policy, graph: Graph, *, seed: int = 0, draws: int = 4) -> npt.NDArray[np.float64]:
    """Score the nodes of a graph, float64, shape (n,): the mean over draws of the random features.

    Memory is O(nodes + edges) times the channels. A directed graph's arcs are read backwards: a seed's worth lies in
    the nodes that it reaches, so these are what it hears from and its degree is the out-degree.
    """
    instance = Instance(graph, 0)
    edge_index = instance.edge_index.flip(0) if graph.directed else instance.edge_index
    arm_scale = ARMS[policy.config.arm].scale
    scale = None if arm_scale is None else arm_scale(edge_index, graph.num_nodes, np.random.default_rng([seed, 1]))
    head_features = instance.log_degree if policy.network.head_shortcut is not None else None
    total = torch.zeros(graph.num_nodes, dtype=torch.float64)
    for draw in range(draws):
        features = instance.features(policy.config.features, np.random.default_rng([seed, 2, draw]))
        total += policy.network(features, edge_index, scale=scale, head_features=head_features)
    return (total / draws).numpy()


def pick_by_policy(
    policy: Policy, graph: Graph, *, k: int | None = None, seed: int = 0, probability: float = PROBABILITY
) -> Selection:
    """Select nodes with a trained policy, for the task that it was trained on.

    Parameters
    ----------
    policy : Policy
    graph : Graph
        Undirected for the independent set and dismantling.
    k : int, optional
        Number of seeds of the influence task; five per cent of the nodes by default.
    seed : int
    probability : float
        Activation probability, used where the graph has none.

    Raises
    ------
    ValueError
        If the graph does not fit the task, or k is not between 1 and the number of nodes.
    """
    task = policy.config.task
    if task != "influence":
        graph.require_undirected(f"the {task.replace('_', ' ')} task")
    scores = score_nodes(policy, graph, seed=seed)
    if task == "independent_set":
        return independent_set.decode(graph, scores)
    if task == "dismantling":
        return dismantling.curve(graph, dismantling.order_by_score(graph, scores))
    seeds = influence.top_scores(graph, scores, _budget(graph, k))
    return evaluate(task, graph, seeds, seed=seed, probability=probability)


def pick_by_method(
    task: str,
    graph: Graph,
    *,
    method: str | None = None,
    k: int | None = None,
    seed: int = 0,
    probability: float = PROBABILITY,
    time_limit: float = 60.0,
) -> Selection:
    """Select nodes with a classical method, the first of ``METHODS[task]`` by default.

    Examples
    --------
    >>> import networkx
    >>> from manifoldnorm.gnn import Graph
    >>> from manifoldnorm.gnn.benchmark_pick import pick_by_method
    >>> pick_by_method("independent_set", Graph.from_networkx(networkx.karate_club_graph())).size
    20
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}; got {task!r}")
    if task == "independent_set" and method == "exact":
        return independent_set.exact(graph, time_limit=time_limit)
    methods = METHODS[task]
    chosen = next(iter(methods)) if method is None else method
    if chosen not in methods:
        names = [*methods, "exact"] if task == "independent_set" else list(methods)
        raise ValueError(f"method must be one of {', '.join(names)} for {task}; got {chosen!r}")
    if task == "influence":
        graph = _with_probabilities(graph, probability)
    budget = _budget(graph, k) if task == "influence" else 0
    nodes = methods[chosen](graph, budget, np.random.default_rng([seed, 3]))
    return evaluate(task, graph, nodes, seed=seed, probability=probability)


def evaluate(
    task: str, graph: Graph, nodes: npt.ArrayLike, *, seed: int = 0, probability: float = PROBABILITY
) -> Selection:
    """Measure nodes that came from anywhere.

    Parameters
    ----------
    task : str
        "independent_set": ``nodes`` is an independent set (checked), or an order of all nodes, which is decoded.
        "influence": the seeds. "dismantling": the removal order, all nodes.
    graph : Graph
    nodes : array of int, shape (k,)
    seed : int
        Of the sampled worlds.
    probability : float
        Activation probability, used where the graph has none.

    Raises
    ------
    ValueError
        If the nodes do not fit the graph or the task.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}; got {task!r}")
    array = check_nodes(nodes, graph.num_nodes, name="nodes")
    if task == "dismantling":
        return dismantling.curve(graph, array)
    if task == "influence":
        return influence.spread(
            _with_probabilities(graph, probability),
            array,
            samples=EVALUATION_WORLDS,
            generator=np.random.default_rng([seed, 4]),
        )
    graph.require_undirected("an independent set")
    if array.size == graph.num_nodes and graph.num_edges:
        rank = np.empty(array.size)
        rank[array] = np.arange(array.size, 0, -1)
        return independent_set.decode(graph, rank)
    checked = independent_set.check_independent(graph, array)
    return independent_set.IndependentSet(checked, len(checked), None, False)


def selected_nodes(selection: Selection) -> Nodes:
    """List the nodes of a selection, in order where the order matters."""
    return selection.order if isinstance(selection, dismantling.DismantlingCurve) else selection.nodes


def describe(selection: Selection, graph: Graph) -> str:
    """Say in one line what a selection is worth."""
    n = graph.num_nodes
    if isinstance(selection, independent_set.IndependentSet):
        text = f"independent set of {selection.size} of {n} nodes"
        if selection.optimal:
            return f"{text}, proved largest"
        return text if selection.bound is None else f"{text}; no set is larger than {selection.bound}"
    if isinstance(selection, influence.Spread):
        return (
            f"{len(selection.nodes)} seeds activate {selection.value:.2f} +- {selection.standard_error:.2f} "
            f"of {n} nodes ({selection.samples} worlds)"
        )
    critical = selection.critical_fraction(0.01 if n >= 1000 else 0.1)
    target = "1 %" if n >= 1000 else "10 %"
    return (
        f"R = {selection.robustness():.4f}; removing {round(critical * n)} of {n} nodes leaves no component "
        f"above {target} of the nodes"
    )


def _budget(graph: Graph, k: int | None) -> int:
    budget = seed_budget(graph.num_nodes) if k is None else k
    check_budget(budget, graph.num_nodes)
    return budget


def _with_probabilities(graph: Graph, probability: float) -> Graph:
    return influence.uniform(graph, probability) if graph.probabilities is None else graph
