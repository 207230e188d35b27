"""The training objectives: budgets are met exactly, gradients are right, hard selections give the hard values."""

import itertools

import pytest
import torch

from manifoldnorm.gnn.objectives import (
    dismantling_loss,
    gumbel_orders,
    independent_set_loss,
    influence_loss,
    plackett_luce_log_probability,
    reinforce_loss,
    relaxed_topk,
)

BATCH = torch.tensor([0] * 6 + [1] * 9)
SIZES = torch.tensor([6, 9])
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def test_budgets_are_met_in_every_graph() -> None:
    scores = 5 * torch.randn(15, dtype=torch.float64)
    k = torch.tensor([[0.3, 2.0, 5.9], [1.0, 4.5, 8.0]], dtype=torch.float64)
    x = relaxed_topk(scores, k, BATCH, SIZES)
    assert ((x > 0) & (x < 1)).all()
    torch.testing.assert_close(torch.stack([x[:6].sum(0), x[6:].sum(0)]), k, rtol=1e-10, atol=1e-10)


def test_relaxation_keeps_the_order_and_sharpens() -> None:
    scores = torch.randn(9)
    batch, sizes = torch.zeros(9, dtype=torch.int64), torch.tensor([9])
    x = relaxed_topk(1000 * scores, torch.tensor([[3.0]]), batch, sizes).squeeze(1)
    hard = torch.zeros(9)
    hard[torch.topk(scores, 3).indices] = 1
    torch.testing.assert_close(x, hard, atol=1e-3, rtol=0)


def test_gradient_of_the_relaxation() -> None:
    k = torch.tensor([[2.0], [3.5]], dtype=torch.float64)
    weights = torch.randn(15, dtype=torch.float64)
    scores = torch.randn(15, dtype=torch.float64, requires_grad=True)

    def weighted(scores: torch.Tensor) -> torch.Tensor:
        return (weights * relaxed_topk(scores, k, BATCH, SIZES).squeeze(1)).sum()

    (gradient,) = torch.autograd.grad(weighted(scores), scores)
    for i in range(15):
        step = torch.zeros(15, dtype=torch.float64)
        step[i] = 1e-5
        with torch.no_grad():
            numeric = (weighted(scores + step) - weighted(scores - step)) / 2e-5
        assert gradient[i].item() == pytest.approx(numeric.item(), abs=1e-8)
    # Adding a constant to a graph's scores changes nothing.
    assert gradient[:6].sum().abs() < 1e-12
    assert gradient[6:].sum().abs() < 1e-12


def test_independent_set_loss_of_hard_sets() -> None:
    batch, sizes = torch.zeros(3, dtype=torch.int64), torch.tensor([3])

    def of(*members: int) -> float:
        scores = torch.full((3,), -200.0)
        scores[list(members)] = 200.0
        return 3 * independent_set_loss(scores, PATH, batch, sizes).item()

    assert of(0, 2) == pytest.approx(-2)
    assert of(0, 1) == pytest.approx(-1)
    assert of(0, 1, 2) == pytest.approx(-1)
    assert of(1) == pytest.approx(-1)


def test_influence_loss_on_a_path() -> None:
    """Two steps from one sure seed at the end: the exact 1 + p + p^2 (later steps flow back, an approximation)."""
    batch, sizes = torch.zeros(3, dtype=torch.int64), torch.tensor([3])
    scores = torch.tensor([200.0, -200.0, -200.0], dtype=torch.float64)
    k = torch.tensor([1.0 - 1e-9], dtype=torch.float64)
    loss = influence_loss(scores, PATH, batch, sizes, k=k, probability=0.3, steps=2)
    assert -3 * loss.item() == pytest.approx(1 + 0.3 + 0.09, abs=1e-4)


def test_dismantling_prefers_the_middle_of_a_star() -> None:
    star = torch.tensor([[0, 1, 0, 2, 0, 3, 0, 4], [1, 0, 2, 0, 3, 0, 4, 0]])
    batch, sizes = torch.zeros(5, dtype=torch.int64), torch.tensor([5])
    hub, leaf = torch.zeros(5), torch.zeros(5)
    hub[0] = leaf[1] = 5.0
    assert dismantling_loss(hub, star, batch, sizes) < dismantling_loss(leaf, star, batch, sizes)
    none = dismantling_loss(hub, torch.zeros(2, 0, dtype=torch.int64), batch, sizes)
    assert torch.isfinite(none)


@pytest.mark.parametrize("loss", [independent_set_loss, dismantling_loss])
def test_a_batch_is_the_mean_of_its_graphs(loss: object) -> None:
    scores = torch.randn(6, dtype=torch.float64)
    zero, three = torch.zeros(3, dtype=torch.int64), torch.tensor([3])
    batch, sizes = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([3, 3])
    joined = loss(scores, torch.cat([PATH, PATH + 3], dim=1), batch, sizes)  # type: ignore[operator]
    alone = [loss(part, PATH, zero, three) for part in (scores[:3], scores[3:])]  # type: ignore[operator]
    torch.testing.assert_close(joined, (alone[0] + alone[1]) / 2)


def test_plackett_luce_is_a_distribution_over_orders() -> None:
    scores = torch.randn(4, dtype=torch.float64)
    orders = torch.tensor(list(itertools.permutations(range(4))))
    assert plackett_luce_log_probability(scores, orders, 4).exp().sum().item() == pytest.approx(1)
    first = plackett_luce_log_probability(scores, orders[orders[:, 0] == 2][:1], 1).exp().item()
    assert first == pytest.approx(torch.softmax(scores, 0)[2].item())
    with pytest.raises(ValueError, match="picks"):
        plackett_luce_log_probability(scores, orders, 5)


def test_gumbel_orders_are_draws_of_plackett_luce() -> None:
    scores = torch.tensor([1.0, 0.0, -0.5])
    drawn = gumbel_orders(scores, 40_000, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn[:, 0], minlength=3) / 40_000
    torch.testing.assert_close(shares, torch.softmax(scores, 0), atol=0.01, rtol=0)
    again = gumbel_orders(scores, 40_000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_reinforce_follows_the_reward() -> None:
    scores = torch.zeros(4, requires_grad=True)
    orders = gumbel_orders(scores, 500, torch.Generator().manual_seed(0))
    reward = (orders[:, 0] == 3).float()
    reinforce_loss(plackett_luce_log_probability(scores, orders, 1), reward).backward()
    assert scores.grad is not None
    assert scores.grad.argmin() == 3
    constant = reinforce_loss(plackett_luce_log_probability(scores, orders, 1), torch.ones(500))
    assert constant.item() == 0


def test_wrong_budget_shape_is_named() -> None:
    with pytest.raises(ValueError, match="k must have shape"):
        relaxed_topk(torch.randn(15), torch.ones(3, 1), BATCH, SIZES)
