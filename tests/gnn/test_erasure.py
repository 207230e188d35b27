"""The erasure lemma: what a norm leaves of a positive scale before it, against the exact factor."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from manifoldnorm.gnn import PostDegNorm, TopologyScale, check_erasure, erasure_factor
from manifoldnorm.gnn.controls import RenormalisedNorm
from tests.gnn.test_postdeg import STAR


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(200, 24, dtype=torch.float64)
    return x, 1 / torch.arange(1, 201, dtype=torch.float64)


def test_golden_factor() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    factor = erasure_factor(torch.tensor(0.01, dtype=torch.float64), x.var(correction=0), 1e-5)
    assert factor.item() == pytest.approx(0.962254297643473, abs=1e-15)


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_meets_the_factor(rows: tuple[torch.Tensor, torch.Tensor], eps: float, affine: bool) -> None:
    x, scale = rows
    norm = nn.LayerNorm(24, eps=eps, elementwise_affine=affine).double()
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    report = check_erasure(norm, x, scale)
    assert report.deviation is not None
    assert report.deviation < 1e-12
    assert report.direction_error < 1e-12


def test_rms_norm_and_node_mode_meet_the_factor(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, scale = rows
    for norm in (nn.RMSNorm(24).double(), pyg.LayerNorm(24, mode="node").double()):
        report = check_erasure(norm, x, scale)
        assert report.erased
        assert report.deviation is not None
        assert report.deviation < 1e-12


def test_bounds_of_the_factor() -> None:
    scale = torch.logspace(-4, 0, 50, dtype=torch.float64)
    for variance in (1e-4, 1.0, 100.0):
        factor = erasure_factor(scale, torch.tensor(variance, dtype=torch.float64), 1e-5)
        assert (factor >= scale * (1 - 1e-12)).all()
        assert (factor <= 1 + 1e-12).all()
        # Whatever is left keeps the order of the scales.
        assert (factor.diff() > -1e-15).all()


def test_norms_that_look_at_one_node_erase_and_others_do_not(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The guide's table of norms. torch-geometric's LayerNorm does not erase in its default mode."""
    x, scale = rows[0].float(), rows[1].float()
    erasing = {"node": pyg.LayerNorm(24, mode="node"), "layer": nn.LayerNorm(24), "rms": nn.RMSNorm(24)}
    keeping = {
        "graph": pyg.LayerNorm(24),
        "batch": pyg.BatchNorm(24),
        "graph_norm": pyg.GraphNorm(24),
        "instance": pyg.InstanceNorm(24),
        "pair": pyg.PairNorm(),
        "mean_subtraction": pyg.MeanSubtractionNorm(),
    }
    for name, norm in erasing.items():
        assert check_erasure(norm, x, scale).erased, name
    for name, norm in keeping.items():
        assert not check_erasure(norm, x, scale).erased, name
    assert check_erasure(lambda x: nn.functional.normalize(x, dim=1), x, scale).erased
    # PairNorm(scale_individually=True) centres each channel over the nodes first, so it is no per-node norm.
    assert check_erasure(pyg.PairNorm(scale_individually=True), x, scale).direction_error > 0.1


def test_a_later_layer_norm_erases_the_post_scale_too() -> None:
    """Falsifier 2's mechanism: LN(s LN(x)) = rho(s, v') LN(LN(x)), with v' the variance after the first norm."""
    x = torch.randn(4, 16, dtype=torch.float64)
    slot = RenormalisedNorm(16).double()
    scale = TopologyScale()(STAR, 4, dtype=torch.float64)
    first = nn.functional.layer_norm(x, (16,))
    factor = erasure_factor(scale, first.var(1, correction=0, keepdim=True), 1e-5)
    expected = factor * nn.functional.layer_norm(first, (16,))
    torch.testing.assert_close(slot(x, scale), expected, rtol=1e-12, atol=1e-14)


def test_a_scale_of_the_whole_graph_ranks_nothing() -> None:
    """Falsifier 1's mechanism: one factor per graph in the last slot leaves each graph's ranking as it is."""
    x, head = torch.randn(40, 16, dtype=torch.float64), nn.Linear(16, 1).double()
    norm = PostDegNorm(16).double()
    graph = torch.arange(40) % 3
    per_graph = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)[graph]
    plain = head(norm(x, scale=torch.ones(40, dtype=torch.float64))).squeeze(1)
    scaled = head(norm(x, scale=per_graph)).squeeze(1)
    for index in range(3):
        mine = graph == index
        assert torch.equal(torch.argsort(plain[mine]), torch.argsort(scaled[mine]))


def test_report_reads_as_a_sentence(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, scale = rows
    assert str(check_erasure(nn.LayerNorm(24).double(), x, scale)).startswith("the norm erases a positive scale")
    assert "does not erase" in str(check_erasure(nn.BatchNorm1d(24).double(), x, scale))


def test_wrong_input_is_named() -> None:
    x = torch.randn(3, 4)
    for scale, message in ((torch.ones(3), "differ"), (torch.tensor([1.0, -1, 2]), "positive"), (torch.ones(2), "N")):
        with pytest.raises(ValueError, match=message):
            check_erasure(nn.LayerNorm(4), x, scale)
    with pytest.raises(ValueError, match="eps"):
        erasure_factor(torch.ones(1), torch.ones(1), -1.0)
