"""NodePolicy: backbones, blocks, norms of any kind in the slot, paired initial weights, equivariance, copies."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from manifoldnorm.gnn import NodePolicy, PostDegNorm, TopologyScale
from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.controls import GatedNorm, PreScaledNorm

BACKBONES = ("gat", "gcn", "sage", "gin")


@pytest.fixture
def edges() -> torch.Tensor:
    drawn = torch.randint(0, 30, (2, 60))
    drawn = drawn[:, drawn[0] != drawn[1]].unique(dim=1)
    return torch.cat([drawn, drawn.flip(0)], dim=1).unique(dim=1)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("block", ["post", "pre"])
def test_permuting_the_nodes_permutes_the_scores(edges: torch.Tensor, backbone: str, block: str) -> None:
    policy = NodePolicy(5, backbone=backbone, block=block).double()  # type: ignore[arg-type]
    x = torch.randn(30, 5, dtype=torch.float64)
    order = torch.randperm(30)
    position = torch.argsort(order)
    torch.testing.assert_close(policy(x[order], position[edges]), policy(x, edges)[order], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_isolated_nodes_and_empty_graphs(backbone: str) -> None:
    policy = NodePolicy(5, backbone=backbone)  # type: ignore[arg-type]
    scores = policy(torch.randn(4, 5), torch.tensor([[0, 1], [1, 0]]))
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)
    assert policy(torch.zeros(0, 5), torch.zeros(2, 0, dtype=torch.int64)).shape == (0,)


def test_a_batch_of_graphs_is_the_graphs_alone(edges: torch.Tensor) -> None:
    policy = NodePolicy(5, norm=lambda dim: PostDegNorm(dim, normalize="graph"))
    x = torch.randn(60, 5)
    batch = torch.arange(60) // 30
    joined = policy(x, torch.cat([edges, edges + 30], dim=1), batch)
    torch.testing.assert_close(joined[:30], policy(x[:30], edges), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(joined[30:], policy(x[30:], edges), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm,
        nn.Identity,
        pyg.GraphNorm,
        PostDegNorm,
        GatedNorm,
        lambda dim: pyg.LayerNorm(dim, mode="node"),
        lambda dim: PostDegNorm(dim, source=TopologyScale("pagerank")),
    ],
)
def test_any_norm_fits_the_slot(edges: torch.Tensor, norm: type[nn.Module]) -> None:
    assert NodePolicy(5, norm=norm)(torch.randn(30, 5), edges).shape == (30,)


def test_norms_get_the_batch_vector(edges: torch.Tensor) -> None:
    policy = NodePolicy(5, norm=pyg.GraphNorm)
    x, batch = torch.randn(30, 5), torch.arange(30) // 15
    assert not torch.allclose(policy(x, edges, batch), policy(x, edges))


def test_a_given_scale_is_used_by_all_slots(edges: torch.Tensor) -> None:
    policy, x = NodePolicy(5), torch.randn(30, 5)
    torch.testing.assert_close(policy(x, edges, scale=TopologyScale()(edges, 30)), policy(x, edges))
    assert not torch.allclose(policy(x, edges, scale=torch.ones(30)), policy(x, edges))


def test_the_scale_of_the_last_slot_multiplies_the_representation(edges: torch.Tensor) -> None:
    torch.manual_seed(1)
    plain = NodePolicy(5, norm=nn.LayerNorm)
    torch.manual_seed(1)
    last = NodePolicy(5, norm=ARMS["last_only"].norms(3))
    x, scale = torch.randn(30, 5), TopologyScale()(edges, 30)
    bias = plain.head.bias
    expected = scale.squeeze(1) * (plain(x, edges) - bias) + bias
    torch.testing.assert_close(last(x, edges, scale=scale), expected)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_arms_of_a_seed_share_the_initial_weights(backbone: str) -> None:
    states = []
    for arm in ARMS.values():
        torch.manual_seed(3)
        policy = NodePolicy(8, backbone=backbone, norm=arm.norms(3), head_features=int(arm.head_degree))  # type: ignore[arg-type]
        states.append({k: v for k, v in policy.state_dict().items() if k.startswith(("embed", "convs", "head."))})
    for state in states[1:]:
        assert all(torch.equal(state[key], states[0][key]) for key in states[0])


def test_gates_and_head_shortcuts_start_as_layer_norm(edges: torch.Tensor) -> None:
    x, scores = torch.randn(30, 8), []
    for name in ("layernorm", "gate", "gate_degree", "head_degree"):
        torch.manual_seed(3)
        arm = ARMS[name]
        policy = NodePolicy(8, norm=arm.norms(3), head_features=int(arm.head_degree))
        scores.append(policy(x, edges, head_features=torch.randn(30, 1) if arm.head_degree else None))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0])


def test_the_scale_before_layer_norm_is_nearly_erased(edges: torch.Tensor) -> None:
    """Control "pre": with inputs of unit variance the scores hardly move; after LayerNorm they do."""
    x, scale = torch.randn(30, 16), TopologyScale()(edges, 30)
    plain = nn.LayerNorm(16)(x)
    assert (PreScaledNorm(16)(x, scale) - plain).norm() / plain.norm() < 1e-3
    assert (PostDegNorm(16)(x, scale=scale) - plain).norm() / plain.norm() > 0.3


def test_copies(edges: torch.Tensor) -> None:
    policy, x = NodePolicy(5, norm=ARMS["gate_degree"].norms(3)), torch.randn(30, 5)
    expected = policy(x, edges)
    for copied in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert torch.equal(copied(x, edges), expected)
    other = NodePolicy(5, norm=ARMS["gate_degree"].norms(3))
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other(x, edges), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NodePolicy(5, backbone="mlp"), "backbone"),  # type: ignore[arg-type]
        (lambda: NodePolicy(5, block="both"), "block"),  # type: ignore[arg-type]
        (lambda: NodePolicy(0), "in_channels"),
        (lambda: NodePolicy(5, 30), "heads"),
        (lambda: NodePolicy(5, norm=[PostDegNorm]), "sequence of 3"),
        (lambda: NodePolicy(5)(torch.randn(3, 4), torch.zeros(2, 0, dtype=torch.int64)), "x must"),
        (
            lambda: NodePolicy(5, head_features=1)(torch.randn(3, 5), torch.zeros(2, 0, dtype=torch.int64)),
            "head_features",
        ),
    ],
)
def test_wrong_input_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.slow
def test_a_million_nodes_on_one_processor() -> None:
    """Scores 1e6 nodes and 3e6 edges with nothing of size nodes x nodes (which would take 4 TB)."""
    import resource

    n = 1_000_000
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(0, n, (2, 3 * n), generator=generator)
    edges = torch.cat([half, half.flip(0)], dim=1)
    for backbone in ("gcn", "gat"):
        policy = NodePolicy(8, backbone=backbone).eval()  # type: ignore[arg-type]
        with torch.inference_mode():
            scores = policy(torch.randn(n, 8, generator=generator), edges)
        assert scores.shape == (n,)
        assert torch.isfinite(scores).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert peak < 12, f"peak memory {peak:.1f} GiB"
