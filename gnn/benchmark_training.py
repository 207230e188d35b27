"""Train the policy of one benchmark run: seeded, paired over arms, on the task's surrogate or on its own metric."""

from math import ceil

import numpy as np
import torch
from torch import Tensor

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_data import GraphBatch, Instance, feature_channels, training_set
from manifoldnorm.gnn.benchmark_metrics import PROBABILITY, TaskMetric, seed_budget, task_metric
from manifoldnorm.gnn.benchmark_plan import RunConfig
from manifoldnorm.gnn.objectives import (
    dismantling_loss,
    gumbel_orders,
    independent_set_loss,
    influence_loss,
    plackett_luce_log_probability,
    reinforce_loss,
)
from manifoldnorm.gnn.policy import NodePolicy

HEAD_SHORTCUT_RATE = 10.0
"""One weight on log degree moves at most rate x steps under Adam; at the common rate it could not reach 1."""

ORDERS = 8
TRAINING_WORLDS = 200
PICKED_FRACTION = {"independent_set": 0.5, "dismantling": 0.3}


def build_policy(config: RunConfig) -> NodePolicy:
    """Build a run's policy; arms of one seed share the initial weights of embedding, convolutions and head."""
    arm = ARMS[config.arm]
    torch.manual_seed(config.seed)
    return NodePolicy(
        feature_channels(config.features),
        config.hidden_channels,
        config.num_layers,
        backbone=config.backbone,  # type: ignore[arg-type]
        block=config.block,  # type: ignore[arg-type]
        heads=config.heads,
        norm=arm.norms(config.num_layers + (config.block == "pre")),
        head_features=int(arm.head_degree),
    )


def graph_scales(config: RunConfig, instances: tuple[Instance, ...], stream: int) -> list[Tensor] | None:
    """Compute each graph's scale for a run's arm; ``stream`` keeps the random scales of different sets apart."""
    scale = ARMS[config.arm].scale
    if scale is None:
        return None
    return [
        scale(
            instance.edge_index,
            instance.graph.num_nodes,
            np.random.default_rng([config.seed, stream, instance.index]),
        )
        for instance in instances
    ]


def score_batch(policy: NodePolicy, batch: GraphBatch) -> Tensor:
    """Score the nodes of a batch, shape (N,)."""
    head_features = batch.log_degree if policy.head_shortcut is not None else None
    return policy(batch.features, batch.edge_index, batch.batch, scale=batch.scale, head_features=head_features)


def train(config: RunConfig) -> NodePolicy:
    """Train the policy of a run.

    Raises
    ------
    FloatingPointError
        If the training diverges.
    """
    policy = build_policy(config)
    instances = training_set(config.seed, config.train_graphs)
    scales = graph_scales(config, instances, stream=23)
    random = np.random.default_rng([config.seed, 31])
    orders = torch.Generator().manual_seed(config.seed)
    metric = task_metric(config.task, TRAINING_WORLDS)
    shortcut = [p for name, p in policy.named_parameters() if name.startswith("head_shortcut")]
    shared = [p for name, p in policy.named_parameters() if not name.startswith("head_shortcut")]
    groups = [{"params": shared}]
    if shortcut:
        groups.append({"params": shortcut, "lr": HEAD_SHORTCUT_RATE * config.learning_rate})  # type: ignore[dict-item]
    optimizer = torch.optim.Adam(groups, lr=config.learning_rate)

    waiting: list[int] = []
    for _ in range(config.steps):
        if not waiting:
            waiting = random.permutation(len(instances)).tolist()
        chosen, waiting = waiting[: config.batch_graphs], waiting[config.batch_graphs :]
        batch = GraphBatch.join(
            [instances[i] for i in chosen],
            [instances[i].features(config.features, random) for i in chosen],
            None if scales is None else [scales[i] for i in chosen],
        )
        scores = score_batch(policy, batch)
        if config.objective == "surrogate":
            loss = surrogate_loss(config.task, scores, batch)
        else:
            loss = metric_loss(config.task, metric, scores, [instances[i] for i in chosen], orders)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in policy.parameters()):
        raise FloatingPointError("the training diverged: a parameter is not finite")
    return policy.eval()


def surrogate_loss(task: str, scores: Tensor, batch: GraphBatch) -> Tensor:
    """Compute a task's differentiable objective on a batch."""
    if task == "independent_set":
        return independent_set_loss(scores, batch.edge_index, batch.batch, batch.sizes)
    if task == "dismantling":
        return dismantling_loss(scores, batch.edge_index, batch.batch, batch.sizes)
    k = torch.tensor([float(seed_budget(n)) for n in batch.sizes.tolist()])
    return influence_loss(scores, batch.edge_index, batch.batch, batch.sizes, k=k, probability=PROBABILITY)


def metric_loss(
    task: str, metric: TaskMetric, scores: Tensor, instances: list[Instance], generator: torch.Generator
) -> Tensor:
    """Compute the REINFORCE loss of a batch: Plackett-Luce orders, rewarded with the task's metric."""
    losses = []
    sizes = [instance.graph.num_nodes for instance in instances]
    for instance, own in zip(instances, torch.split(scores, sizes), strict=True):
        n = instance.graph.num_nodes
        picks = seed_budget(n) if task == "influence" else ceil(PICKED_FRACTION[task] * n)
        drawn = gumbel_orders(own, ORDERS, generator)
        rewards = [metric.orientation * metric.of_order(instance, order) for order in drawn.numpy()]
        log_probability = plackett_luce_log_probability(own, drawn, picks)
        losses.append(reinforce_loss(log_probability, torch.tensor(rewards, dtype=own.dtype)))
    return torch.stack(losses).mean()
