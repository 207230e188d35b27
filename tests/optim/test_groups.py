"""Routing of parameters by module type and name, MACROWithAdamW, and the learnable gain."""

import copy

import pytest
import torch
from torch import nn

from manifoldnorm.nn.gain import LearnableGain, add_gain, fold_gain
from manifoldnorm.optim import (
    MACRO,
    MACROWithAdamW,
    constraint_error,
    macro_param_groups,
    mup_radius,
    rotation_angle,
    route_parameters,
    routing_table,
    stationarity,
)


class Language(nn.Module):
    """A tied language model with one of every kind of weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.depthwise = nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.mixing = nn.Parameter(torch.randn(8, 8))
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x = x + self.depthwise(self.convolution(x.mT)).mT
        x = x + self.recurrent(x)[0] @ self.mixing
        return self.lm_head(x)


def algorithms(model: nn.Module, **options: object) -> dict[str, str]:
    return {route.name: route.algorithm for route in route_parameters(model, **options)}


def test_routing_by_module_type() -> None:
    routes = algorithms(Language())
    assert {name for name, algorithm in routes.items() if algorithm == "macro"} == {
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "convolution.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
    }
    assert routes["embed.weight"] == routes["mixing"] == routes["depthwise.weight"] == "adamw"
    assert "lm_head.weight" not in routes


def test_fused_projections_are_split() -> None:
    splits = {route.name: route.split for route in route_parameters(Language())}
    assert splits["attention.in_proj_weight"] == (8, 8, 8)
    assert splits["recurrent.weight_ih_l0"] == (8, 8, 8, 8)
    assert splits["attention.out_proj.weight"] is None
    model = nn.Sequential(nn.Linear(4, 12))
    named = route_parameters(model, split={"*.weight": [4, 4, 4]})
    assert named[0].split == (4, 4, 4)


def test_patterns_override() -> None:
    model = Language()
    assert algorithms(model, macro_patterns=["mixing"])["mixing"] == "macro"
    assert algorithms(model, adamw_patterns=["attention*"])["attention.in_proj_weight"] == "adamw"
    head = nn.ModuleDict({"my_head": nn.Linear(4, 4, bias=False)})
    assert algorithms(head) == {"my_head.weight": "adamw"}
    assert algorithms(head, adamw_patterns=()) == {"my_head.weight": "macro"}


def test_tied_weights_count_once_and_follow_the_stricter_use() -> None:
    """A head without a telling name, tied to an embedding, goes where the embedding goes."""
    model = nn.ModuleDict({"first": nn.Linear(8, 11, bias=False), "second": nn.Embedding(11, 8)})
    model["second"].weight = model["first"].weight
    (route,) = route_parameters(model)
    assert route.algorithm == "adamw"
    assert "Embedding" in route.reason
    tied = nn.ModuleDict({"a": nn.Linear(8, 8, bias=False), "b": nn.Linear(8, 8, bias=False)})
    tied["b"].weight = tied["a"].weight
    groups = macro_param_groups(tied)
    assert [group["param_names"] for group in groups] == [["a.weight"]]
    MACROWithAdamW(groups)


def test_bad_patterns() -> None:
    model = Language()
    with pytest.raises(ValueError, match="no parameter matches blocks"):
        route_parameters(model, macro_patterns=["blocks.*"])
    with pytest.raises(ValueError, match=r"'embed.weight' is the weight of an embedding.*'\*embed"):
        route_parameters(model, macro_patterns=["*embed*"])
    with pytest.raises(ValueError, match=r"'norm.weight' has shape \(8,\)"):
        route_parameters(model, macro_patterns=["norm.*"])


def test_table_is_printed_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    model = Language()
    model.mixing.requires_grad_(False)
    groups = macro_param_groups(model, show=True)
    printed = capsys.readouterr().out
    assert printed == routing_table(route_parameters(model)) + "\n"
    assert "mixing" in printed
    assert "frozen" in printed
    names = [name for group in groups for name in group["param_names"]]
    assert sorted([*names, "mixing"]) == sorted(name for name, _ in model.named_parameters())


def test_one_optimizer_equals_two() -> None:
    model = Language()
    twin = copy.deepcopy(model)
    settings = {"macro": {"lr": 0.05, "manifold": "spectral"}, "adamw": {"lr": 1e-2, "weight_decay": 0.1}}
    optimizer = MACROWithAdamW(macro_param_groups(model, **settings))
    groups = macro_param_groups(twin, **settings)
    pair = [
        MACRO([g for g in groups if g["algorithm"] == "macro"]),
        torch.optim.AdamW([g for g in groups if g["algorithm"] == "adamw"]),
    ]
    for seed in range(4):
        tokens = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(seed))
        for net, optimizers in ((model, [optimizer]), (twin, pair)):
            for one in optimizers:
                one.zero_grad()
            nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
            for one in optimizers:
                one.step()
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.equal(p, q)
    assert set(constraint_error(optimizer)) == {
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "convolution.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
    }
    assert max(constraint_error(optimizer).values()) < 2e-6


def test_groups_need_an_algorithm() -> None:
    with pytest.raises(ValueError, match="every group needs algorithm='macro' or 'adamw', got None"):
        MACROWithAdamW([{"params": [nn.Parameter(torch.eye(2))]}])
    optimizer = MACROWithAdamW(macro_param_groups(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="'v' has shape"):
        optimizer.add_param_group({"algorithm": "macro", "params": [("v", nn.Parameter(torch.ones(2)))]})
    assert len(optimizer.param_groups) == 2


def test_stationarity_vanishes_at_the_minimum_and_sums_blocks() -> None:
    c = torch.randn(6, 4, dtype=torch.float64)
    p = nn.Parameter(-c.clone())
    optimizer = MACRO([p], manifold="frobenius")
    p.grad = c
    assert stationarity(optimizer)["0"] < 1e-12
    q = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
    split = MACRO([q], manifold="euclidean", split=[2, 4])
    q.grad = c
    expected = sum(float(torch.linalg.svdvals(part).sum()) for part in c.split([2, 4]))
    assert stationarity(split)["0"] == pytest.approx(expected)


def test_rotation_angle_of_any_optimizer() -> None:
    p = nn.Parameter(torch.tensor([[1.0, 0.0]]))
    optimizer = torch.optim.SGD([("w", p)], lr=1.0)
    p.grad = torch.tensor([[0.0, -1.0]])
    with rotation_angle(optimizer) as angles:
        optimizer.step()
    assert angles == {"w": pytest.approx(torch.pi / 4, rel=1e-6)}


def test_mup_radius() -> None:
    assert mup_radius("stiefel", 16, 64) == 0.5
    assert mup_radius("oblique_rows", 16, 64) == pytest.approx(mup_radius("frobenius", 16, 64) / 4)
    with pytest.raises(ValueError, match="euclidean manifold has no radius"):
        mup_radius("euclidean", 2, 2)


@pytest.mark.parametrize("per", ["row", "column", "scalar"])
def test_gain_trains_beside_a_constrained_weight(per: str) -> None:
    model = nn.Sequential(add_gain(nn.Linear(6, 8), per=per), nn.Tanh(), add_gain(nn.Linear(8, 3), per=per))
    x = torch.randn(32, 6)
    before = model(x)
    groups = macro_param_groups(model, macro={"manifold": "spectral"}, adamw={"lr": 1e-2})
    names = {name: group["algorithm"] for group in groups for name in group["param_names"]}
    assert names["0.parametrizations.weight.original"] == "macro"
    assert names["0.parametrizations.weight.0.gain"] == "adamw"
    optimizer = MACROWithAdamW(groups)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - 3 * x[:, :3]).square().mean().backward()
        optimizer.step()
    assert max(constraint_error(optimizer).values()) < 2e-6
    gain = model[0].parametrizations.weight[0].gain
    assert not torch.allclose(gain, torch.ones_like(gain), atol=1e-3)
    copied = copy.deepcopy(model)
    copied.load_state_dict(model.state_dict())
    expected = model(x)
    torch.testing.assert_close(copied(x), expected)
    for layer in (copied[0], copied[2]):
        fold_gain(layer)
    torch.testing.assert_close(copied(x), expected)
    assert [name for name, _ in copied[0].named_parameters()] == ["bias", "weight"]


def test_gain_errors() -> None:
    layer = add_gain(nn.Linear(3, 3))
    assert "per='row'" in repr(layer)
    with pytest.raises(ValueError, match="has a gain already"):
        add_gain(layer)
    with pytest.raises(ValueError, match="has no gain"):
        fold_gain(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="no weight called 'kernel'"):
        add_gain(nn.Linear(3, 3), "kernel")
    with pytest.raises(ValueError, match="per must be one of row"):
        LearnableGain(torch.ones(2, 2), per="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two or more dimensions"):
        LearnableGain(torch.ones(2))


def test_other_parametrisations_go_to_adamw() -> None:
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
    assert set(algorithms(layer).values()) == {"adamw"}
