"""Labelled graphs for node classification, from what ships with the dependencies and from a seeded generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelledGraph:
    """A graph with features and a class for every node.

    Attributes
    ----------
    features : Tensor
        Shape (nodes, features), float32.
    edge_index : Tensor
        Shape (2, edges), int64, both directions of every edge.
    labels : Tensor
        Shape (nodes,), int64.
    """

    features: Tensor
    edge_index: Tensor
    labels: Tensor

    def split(self, per_class: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Return masks of `per_class` random training nodes of each class, and of all others."""
        generator = torch.Generator().manual_seed(seed)
        train = torch.zeros(len(self.labels), dtype=torch.bool)
        for label in self.labels.unique():
            members = (self.labels == label).nonzero().squeeze(1)
            train[members[torch.randperm(len(members), generator=generator)[:per_class]]] = True
        return train, ~train


def digits_graph(*, neighbors: int = 8, noise: float = 0.0, seed: int = 0) -> LabelledGraph:
    """Load scikit-learn's 1,797 handwritten digits as a graph of nearest neighbours; real data.

    Parameters
    ----------
    neighbors : int
        Each digit is linked with this many nearest others.
    noise : float
        Standard deviation of Gaussian noise on the features (not on the graph), in units of the grey range.
    seed : int
        Of the noise.

    Raises
    ------
    ModuleNotFoundError
        When scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("digits_graph needs scikit-learn: pip install 'manifoldnorm[data]'") from error
    digits = load_digits()
    features = torch.from_numpy(digits.data).float() / 16
    nearest = torch.cdist(features, features).fill_diagonal_(torch.inf).topk(neighbors, largest=False).indices
    source = torch.arange(len(features)).repeat_interleave(neighbors)
    edges = torch.stack((source, nearest.flatten()))
    edges = torch.cat((edges, edges.flip(0)), 1).unique(dim=1)
    disturbance = torch.randn(features.shape, generator=torch.Generator().manual_seed(seed))
    return LabelledGraph(features + noise * disturbance, edges, torch.from_numpy(digits.target).long())


def hierarchy_graph(
    *, branching: int = 3, depth: int = 6, classes: int = 9, features: int = 16, noise: float = 1.0, seed: int
) -> LabelledGraph:
    """Draw a tree whose nodes are labelled by the subtree they are in, with noisy features inherited from parents.

    Parameters
    ----------
    branching, depth : int
        Children of every node and levels of the tree.
    classes : int
        A power of `branching`: the subtrees at that level are the classes; nodes above them are drawn at random.
    features : int
        Number of features, a random walk down the tree.
    noise : float
        Standard deviation of the noise that is added to each node's features.
    seed : int
        Of everything.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = [branching**level for level in range(depth + 1)]
    if classes not in sizes:
        raise ValueError(f"classes must be one of {sizes} for branching {branching} and depth {depth}, got {classes}")
    total = sum(sizes)
    parent = (torch.arange(1, total) - 1) // branching
    walk = torch.zeros(total, features)
    steps = torch.randn(total, features, generator=generator)
    for node in range(1, total):
        walk[node] = walk[parent[node - 1]] + 0.5 * steps[node]
    first = sum(sizes[: sizes.index(classes)])
    labels = torch.randint(classes, (total,), generator=generator)
    labels[first : first + classes] = torch.arange(classes)
    for node in range(first + classes, total):
        labels[node] = labels[parent[node - 1]]
    edges = torch.stack((torch.arange(1, total), parent))
    observed = walk + noise * torch.randn(total, features, generator=generator)
    return LabelledGraph(observed, torch.cat((edges, edges.flip(0)), 1), labels)
