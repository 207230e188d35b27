"""PostDegNorm: LayerNorm then scale, on batches, isolated nodes, empty graphs, in every dtype and under transforms."""

import copy
import json
import pickle

import networkx as nx
import pytest
import torch
from torch import nn

from manifoldnorm.gnn import PostDegNorm, TopologyScale
from tests.conftest import GOLDEN

STAR = torch.tensor([[0, 1, 0, 2, 0, 3], [1, 0, 2, 0, 3, 0]])
FAULTS = {case["id"]: case for case in json.loads((GOLDEN / "faults_graph.json").read_text())}


def test_it_is_layer_norm_times_the_scale() -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    norm = PostDegNorm(8).double()
    with torch.no_grad():
        assert norm.weight is not None
        assert norm.bias is not None
        norm.weight.normal_()
        norm.bias.normal_()
    plain = nn.LayerNorm(8).double()
    plain.load_state_dict(norm.state_dict())
    expected = plain(x) * torch.tensor([[0.25], [0.5], [0.5], [0.5]], dtype=torch.float64)
    torch.testing.assert_close(norm(x, STAR), expected, rtol=1e-12, atol=0)


def test_without_affine_it_has_no_parameters() -> None:
    assert not list(PostDegNorm(8, affine=False).parameters())


def test_given_scales_replace_the_edges() -> None:
    x = torch.randn(4, 8)
    norm = PostDegNorm(8)
    scale = TopologyScale()(STAR, 4)
    assert torch.equal(norm(x, scale=scale), norm(x, STAR))
    assert torch.equal(norm(x, scale=scale.squeeze(1)), norm(x, STAR))
    with pytest.raises(ValueError, match="one value per node"):
        norm(x, scale=torch.ones(3))


def test_permuting_the_nodes_permutes_the_output() -> None:
    graph = nx.gnp_random_graph(30, 0.15, seed=1)
    edges = torch.tensor(list(graph.edges)).t()
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.randn(30, 8, dtype=torch.float64)
    order = torch.randperm(30)
    position = torch.argsort(order)
    for source in ("degree", "core_number", "pagerank"):
        norm = PostDegNorm(8, source=source).double()  # type: ignore[arg-type]
        torch.testing.assert_close(norm(x[order], position[edges]), norm(x, edges)[order], rtol=1e-10, atol=1e-12)


def test_a_batch_of_two_graphs_is_both_alone() -> None:
    norm = PostDegNorm(8, normalize="graph")
    x, y = torch.randn(4, 8), torch.randn(2, 8)
    pair = torch.tensor([[0, 1], [1, 0]])
    batch = torch.tensor([0, 0, 0, 0, 2, 2])
    joined = norm(torch.cat([x, y]), torch.cat([STAR, pair + 4], dim=1), batch)
    torch.testing.assert_close(joined, torch.cat([norm(x, STAR), norm(y, pair)]))


def test_large_offsets_do_not_cancel_in_the_variance() -> None:
    case = FAULTS["S31"]
    x = torch.tensor([case["inputs"]["x"]], dtype=torch.float32)
    y = PostDegNorm(4, affine=False, eps=case["inputs"]["eps"])(x, torch.zeros(2, 0, dtype=torch.int64))
    torch.testing.assert_close(y[0], torch.tensor(case["expected"]), atol=case["tolerance"]["abs"], rtol=0)


def test_constant_rows_give_zero_and_a_finite_gradient() -> None:
    case = FAULTS["S32"]
    x = torch.tensor([case["inputs"]["x"]], dtype=torch.float32, requires_grad=True)
    y = PostDegNorm(4, affine=False, eps=case["inputs"]["eps"])(x, torch.zeros(2, 0, dtype=torch.int64))
    (gradient,) = torch.autograd.grad((y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(), x)
    assert y.abs().max() < 1e-3
    assert torch.isfinite(gradient).all()


def test_isolated_nodes_no_nodes_and_an_empty_graph_in_the_batch() -> None:
    case = FAULTS["S33"]
    edges = torch.tensor(case["inputs"]["edges"]).t()
    n = case["inputs"]["num_nodes"]
    for settings in ({}, {"normalize": "graph"}, {"source": "pagerank"}):
        norm = PostDegNorm(8, **settings)  # type: ignore[arg-type]
        x = torch.randn(n, 8, requires_grad=True)
        y = norm(x, edges, torch.tensor([0, 0, 2, 2]))
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.isfinite(y).all()
        assert torch.isfinite(gradient).all()
        empty = norm(torch.zeros(0, 8), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        assert empty.shape == (0, 8)
    x = torch.randn(n, 8)
    torch.testing.assert_close(PostDegNorm(8)(x, edges)[2:], nn.functional.layer_norm(x, (8,))[2:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_input_dtype_is_kept(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    y = PostDegNorm(8).to(dtype)(x.to(dtype), STAR)
    assert y.dtype == dtype
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(y.double(), PostDegNorm(8).double()(x, STAR), atol=tolerance, rtol=tolerance)


def test_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = PostDegNorm(8)(torch.randn(4, 8), STAR)
    assert torch.isfinite(y).all()


def test_gradient() -> None:
    norm = PostDegNorm(6).double()
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm(x, STAR), (x,))


def test_copies_and_layer_norm_state() -> None:
    norm = PostDegNorm(8, source=TopologyScale("pagerank", power=0.5))
    norm.load_state_dict(nn.LayerNorm(8).state_dict())
    x = torch.randn(4, 8)
    for copied in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert torch.equal(copied(x, STAR), norm(x, STAR))
    norm.reset_parameters()
    assert "pagerank" in repr(norm)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PostDegNorm(0), "dim"),
        (lambda: PostDegNorm(8, eps=0.0), "eps"),
        (lambda: PostDegNorm(8, source=TopologyScale(), power=0.5), "TopologyScale"),
        (lambda: PostDegNorm(8)(torch.randn(4, 7), STAR), r"\(N, 8\)"),
        (lambda: PostDegNorm(8)(torch.randn(4, 8)), "edge_index"),
    ],
)
def test_wrong_input_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"normalize": "graph"}, {"source": "pagerank"}])
def test_compiles_without_graph_breaks(settings: dict[str, str]) -> None:
    norm = PostDegNorm(8, **settings)  # type: ignore[arg-type]
    x, batch = torch.randn(4, 8), torch.tensor([0, 0, 1, 1])
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, STAR, batch), norm(x, STAR, batch))


@pytest.mark.gpu
def test_cuda_agrees_with_the_processor() -> None:
    x, norm = torch.randn(4, 8), PostDegNorm(8, source="pagerank", normalize="graph")
    expected = norm(x, STAR, torch.tensor([0, 0, 1, 1]))
    result = norm.cuda()(x.cuda(), STAR.cuda(), torch.tensor([0, 0, 1, 1]).cuda())
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
