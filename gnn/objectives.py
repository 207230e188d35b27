"""Differentiable objectives of the three node-selection tasks, on batches of graphs.

`independent_set_loss`, `influence_loss` and `dismantling_loss` relax the selection; `plackett_luce_log_probability`
and `reinforce_loss` train on the task's own metric instead. Scores z have shape (N,), ``batch`` gives each node's
graph, and ``sizes`` the number of nodes of each graph (none empty).
"""

import torch
from torch import Tensor

BISECTIONS = 35


def relaxed_topk(scores: Tensor, k: Tensor, batch: Tensor, sizes: Tensor) -> Tensor:
    r"""Relax "the k best nodes of each graph" to a value in (0, 1) for each node.

    :math:`x_i = \sigma(z_i - \tau_g)`, with the graph's threshold such that :math:`\sum_{i\in g} x_i = k_g`.
    The threshold is found by bisection without gradients and one Newton step with gradients, which makes the gradient
    that of the implicit function exactly.

    Parameters
    ----------
    scores : Tensor, shape (N,)
    k : Tensor, shape (G, B)
        B budgets for each of the G graphs, each 0 < k < number of nodes.
    batch : Tensor of int64, shape (N,)
    sizes : Tensor of int64, shape (G,)

    Returns
    -------
    Tensor, shape (N, B)
        Values in (0, 1) that add up to ``k`` over each graph.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn.objectives import relaxed_topk
    >>> batch, sizes = torch.zeros(5, dtype=torch.int64), torch.tensor([5])
    >>> x = relaxed_topk(torch.randn(5), torch.tensor([[1.0, 2.5]]), batch, sizes)
    >>> torch.allclose(x.sum(0), torch.tensor([1.0, 2.5]))
    True
    """
    if k.ndim != 2 or k.shape[0] != sizes.shape[0]:
        raise ValueError(f"k must have shape (number of graphs = {sizes.shape[0]}, B); got {tuple(k.shape)}")
    k = k.to(scores.dtype)
    z = scores.unsqueeze(1)
    with torch.no_grad():
        # At these thresholds the sum is at least and at most k, so that they bracket the solution.
        shift = torch.logit(k / sizes.unsqueeze(1))
        lowest = scores.new_zeros(k.shape[0]).scatter_reduce_(0, batch, scores, "amin", include_self=False)
        highest = scores.new_zeros(k.shape[0]).scatter_reduce_(0, batch, scores, "amax", include_self=False)
        low, high = lowest.unsqueeze(1) - shift, highest.unsqueeze(1) - shift
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = _graph_sum(torch.sigmoid(z - middle[batch]), batch, k.shape) > k
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = (low + high) / 2
    x = torch.sigmoid(z - threshold[batch])
    slope = _graph_sum((x * (1 - x)).detach(), batch, k.shape).clamp_min(torch.finfo(x.dtype).tiny)
    threshold = threshold + (_graph_sum(x, batch, k.shape) - k) / slope
    return torch.sigmoid(z - threshold[batch])


def independent_set_loss(
    scores: Tensor, edge_index: Tensor, batch: Tensor, sizes: Tensor, *, penalty: float = 1.0
) -> Tensor:
    """Compute the expected number of violated edges minus the expected size, per node, of a random node set.

    Node i is in the set with probability sigmoid(z_i), independently. With ``penalty >= 1`` rounding by conditional
    expectations gives a valid set at least as good (Karalias, Loukas, "Erdos goes neural", 2020).

    Parameters
    ----------
    scores : Tensor, shape (N,)
    edge_index : Tensor of int64, shape (2, E)
        Both directions of each edge.
    batch : Tensor of int64, shape (N,)
    sizes : Tensor of int64, shape (G,)
    penalty : float, default 1.0

    Returns
    -------
    Tensor, scalar
    """
    x = torch.sigmoid(scores)
    # Both directions of each edge are stored, hence the half.
    violated = 0.5 * x[edge_index[0]] * x[edge_index[1]]
    graphs = (sizes.shape[0],)
    size = _graph_sum(x, batch, graphs)
    return ((penalty * _graph_sum(violated, batch[edge_index[0]], graphs) - size) / sizes).mean()


def influence_loss(
    scores: Tensor,
    edge_index: Tensor,
    batch: Tensor,
    sizes: Tensor,
    *,
    k: Tensor,
    probability: float,
    steps: int = 4,
) -> Tensor:
    """Compute minus the fraction of nodes that a relaxed seed set of size k activates in a few cascade steps.

    Activations of different neighbours are taken as independent: a node is newly active with probability
    1 - prod(1 - p f_u) over its in-neighbours' new activations f, if it was not active before.

    Parameters
    ----------
    scores : Tensor, shape (N,)
    edge_index : Tensor of int64, shape (2, E)
    batch : Tensor of int64, shape (N,)
    sizes : Tensor of int64, shape (G,)
    k : Tensor, shape (G,)
        Number of seeds of each graph.
    probability : float
        Probability p that an active node activates a neighbour.
    steps : int, default 4

    Returns
    -------
    Tensor, scalar
    """
    source, target = edge_index[0], edge_index[1]
    active = newly = relaxed_topk(scores, k.unsqueeze(1), batch, sizes).squeeze(1)
    for _ in range(steps):
        escape = torch.log1p(-probability * newly)[source]
        reached = -torch.expm1(torch.zeros_like(active).index_add(0, target, escape))
        newly = (1 - active) * reached
        active = active + newly
    return -(_graph_sum(active, batch, (sizes.shape[0],)) / sizes).mean()


def dismantling_loss(
    scores: Tensor,
    edge_index: Tensor,
    batch: Tensor,
    sizes: Tensor,
    *,
    fractions: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3),
    walk_length: int = 6,
) -> Tensor:
    """Compute the mean log number of walks that survive the relaxed removal of the best nodes, at several budgets.

    The number of walks stands for the spectral radius of what is left of the graph.

    Parameters
    ----------
    scores : Tensor, shape (N,)
    edge_index : Tensor of int64, shape (2, E)
    batch : Tensor of int64, shape (N,)
    sizes : Tensor of int64, shape (G,)
    fractions : tuple of float, default (0.05, 0.1, 0.2, 0.3)
        Fractions of the nodes to remove.
    walk_length : int, default 6

    Returns
    -------
    Tensor, scalar
    """
    source, target = edge_index[0], edge_index[1]
    budgets = sizes.unsqueeze(1).to(scores.dtype) * scores.new_tensor(fractions)
    kept = 1 - relaxed_topk(scores, budgets, batch, sizes)
    walks = kept
    for _ in range(walk_length):
        walks = kept * torch.zeros_like(walks).index_add(0, target, walks[source])
    total = _graph_sum(walks, batch, budgets.shape) / sizes.unsqueeze(1)
    # A graph without edges has no walks; its term is constant and must not be -inf.
    return torch.log(total.clamp_min(torch.finfo(total.dtype).tiny)).mean() / walk_length


def plackett_luce_log_probability(scores: Tensor, order: Tensor, picks: int) -> Tensor:
    """Compute the log probability that drawing nodes without replacement, weights exp(z), starts with ``order``.

    Parameters
    ----------
    scores : Tensor, shape (n,)
        Scores of the nodes of one graph.
    order : Tensor of int64, shape (K, n)
        K complete orders.
    picks : int
        Number m of first places that count, 1 <= m <= n.

    Returns
    -------
    Tensor, shape (K,)

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn.objectives import plackett_luce_log_probability
    >>> order = torch.tensor([[0, 1, 2]])
    >>> round(plackett_luce_log_probability(torch.zeros(3), order, 3).exp().item(), 4)  # one of 3! orders
    0.1667
    """
    if not 1 <= picks <= order.shape[1]:
        raise ValueError(f"picks must be between 1 and the number of nodes, {order.shape[1]}; got {picks}")
    ordered = scores[order]
    remaining = torch.logcumsumexp(ordered.flip(1), dim=1).flip(1)
    return (ordered - remaining)[:, :picks].sum(1)


def gumbel_orders(scores: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` orders of the nodes from the Plackett-Luce distribution with weights exp(z), shape (count, n)."""
    uniform = torch.rand(count, scores.shape[0], generator=generator, dtype=torch.float64)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))
    return torch.argsort(scores.detach().double().cpu() + gumbel, dim=1, descending=True)


def reinforce_loss(log_probability: Tensor, reward: Tensor) -> Tensor:
    """Compute the score-function loss of one graph; the rewards of its K orders are normalised among themselves.

    Parameters
    ----------
    log_probability, reward : Tensor, shape (K,)

    Returns
    -------
    Tensor, scalar
    """
    centred = reward - reward.mean()
    advantage = centred / (centred.square().mean().sqrt() + 1e-6)
    return -(advantage.detach() * log_probability).mean()


def _graph_sum(values: Tensor, graph: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    return values.new_zeros(shape).index_add(0, graph, values)
