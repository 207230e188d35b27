"""A synthetic hierarchy: noisy observations of the leaves of a balanced tree, whose distances are the tree's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """A balanced tree; node 0 is the root and nodes are numbered level by level.

    Attributes
    ----------
    branching, depth : int
        Children per node and number of levels below the root.
    parents : Tensor
        Shape (nodes,), int64; the root is its own parent.
    """

    branching: int
    depth: int
    parents: Tensor

    @property
    def leaves(self) -> Tensor:
        """The node indices of the last level."""
        return torch.arange(len(self.parents) - self.branching**self.depth, len(self.parents))

    def ancestors(self) -> Tensor:
        """Return the matrix (nodes, nodes) that is 1 where the column's node is the row's node or above it."""
        table = torch.eye(len(self.parents))
        for node in range(1, len(self.parents)):
            table[node] += table[int(self.parents[node])]
        return table

    def distances(self) -> Tensor:
        """Return the number of edges between all pairs of nodes, shape (nodes, nodes)."""
        table = self.ancestors()
        level = table.sum(1)
        return level[:, None] + level[None, :] - 2 * table @ table.mT


def balanced_tree(branching: int, depth: int) -> Tree:
    """Make a balanced tree.

    Examples
    --------
    >>> tree = balanced_tree(2, 2)
    >>> tree.parents.tolist()
    [0, 0, 0, 1, 1, 2, 2]
    >>> float(tree.distances()[3, 5])
    4.0
    """
    if branching < 1 or depth < 0:
        raise ValueError(f"branching must be at least 1 and depth not negative, got {branching} and {depth}")
    parents, level = [0], [0]
    for _ in range(depth):
        first = len(parents)
        parents += [node for node in level for _ in range(branching)]
        level = list(range(first, len(parents)))
    return Tree(branching, depth, torch.tensor(parents))


def tree_observations(
    tree: Tree, samples_per_leaf: int, *, size: int, noise: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw noisy vectors of the leaves: the sum of one Gaussian code for each node on the way to the root, plus noise.

    Two leaves that part late share most of their codes, so that confusable classes are close in the tree.

    Parameters
    ----------
    tree : Tree
        The hierarchy; the classes are its leaves.
    samples_per_leaf : int
        Observations of each leaf.
    size : int
        Length of the vectors.
    noise : float
        Standard deviation added to every entry; a node's code has entries of standard deviation 1/sqrt(size).
    generator : torch.Generator, optional
        For codes and noise.

    Returns
    -------
    x : Tensor
        Shape (leaves * samples_per_leaf, size), float32.
    labels : Tensor
        Leaf numbers, 0 to leaves - 1.

    Examples
    --------
    >>> x, labels = tree_observations(balanced_tree(3, 2), 4, size=16, noise=0.1)
    >>> x.shape, int(labels.max())
    (torch.Size([36, 16]), 8)
    """
    if samples_per_leaf < 1 or size < 1 or noise < 0:
        raise ValueError(
            f"need positive samples_per_leaf and size, noise >= 0; got {samples_per_leaf}, {size}, {noise}"
        )
    codes = torch.randn(len(tree.parents), size, generator=generator) / size**0.5
    means = (tree.ancestors() @ codes)[tree.leaves]
    labels = torch.arange(len(means)).repeat_interleave(samples_per_leaf)
    return means[labels] + noise * torch.randn(len(labels), size, generator=generator), labels
