"""Checkpoints, copies, schedulers, gradient scaling, and messages for what an optimizer cannot do."""

import copy
import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from manifoldnorm.optim import (
    MACRO,
    MACROWithAdamW,
    constraint_error,
    macro_param_groups,
    project_to_constraint_,
    set_radius,
)
from tests.conftest import GOLDEN

MANIFOLDS = ["euclidean", "frobenius", "spectral", "oblique_rows", "oblique_cols", "stiefel", "grassmann"]


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4)).to(dtype)


def optimizer_of(model: nn.Module, manifold: str, **settings: object) -> MACROWithAdamW:
    groups = macro_param_groups(model, macro={"manifold": manifold, **settings}, adamw={"lr": 1e-2})
    return MACROWithAdamW(groups)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(count):
        x = torch.randn(16, 6, generator=generator).to(dtype)
        optimizer.zero_grad()
        loss = (model(x) - x[:, :4].sin()).float().square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
@pytest.mark.parametrize(
    ("manifold", "dtype", "settings"),
    [(m, torch.float32, {}) for m in MANIFOLDS]
    + [("stiefel", torch.bfloat16, {"master_weights": True}), ("spectral", torch.bfloat16, {"master_weights": True})]
    + [("frobenius", torch.bfloat16, {}), ("frobenius", torch.float32, {"precondition": "adam"})],
)
def test_resume_is_bit_exact(
    tmp_path: Path, manifold: str, dtype: torch.dtype, settings: dict[str, object], order: str
) -> None:
    model = network(dtype)
    optimizer = optimizer_of(model, manifold, **settings)
    train(model, optimizer, 5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    train(model, optimizer, 5, seed=1)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = network(dtype)
    with torch.no_grad():
        for p in resumed.parameters():
            p.add_(1.0)
    restored = optimizer_of(resumed, manifold, **settings)
    if order == "model first":
        resumed.load_state_dict(saved["model"])
        restored.load_state_dict(saved["optimizer"])
    else:
        restored.load_state_dict(saved["optimizer"])
        resumed.load_state_dict(saved["model"])
    train(resumed, restored, 5, seed=1)
    assert same(model, resumed)
    for p, q in zip(model.parameters(), resumed.parameters()):
        for key, value in optimizer.state[p].items():
            assert value.dtype == restored.state[q][key].dtype, key
            assert torch.equal(value, restored.state[q][key]), key


@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("manifold", MANIFOLDS[1:])
def test_weights_loaded_afterwards_end_on_the_manifold(manifold: str, master: bool) -> None:
    """Only the model is loaded, with weights of any size: the next step puts them on the manifold, and uses them."""
    dtype = torch.bfloat16 if master else torch.float32
    model, other = network(dtype), network(dtype)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(7.0).add_(0.1)
    optimizer = optimizer_of(model, manifold, master_weights=master)
    train(model, optimizer, 3)
    radius = {p: optimizer.state[p]["radius"].clone() for p in model.parameters() if "radius" in optimizer.state[p]}
    model.load_state_dict(other.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, 1)
    assert max(constraint_error(optimizer).values()) < 2e-6
    for p, value in radius.items():
        assert torch.equal(optimizer.state[p]["radius"], value)
    loaded, target = model[0].weight.detach().float().flatten(), other[0].weight.detach().float().flatten()
    assert float(torch.cosine_similarity(loaded, target, dim=0)) > 0.7


@pytest.mark.parametrize("manifold", ["frobenius", "spectral", "stiefel"])
def test_copies_keep_the_manifold(manifold: str) -> None:
    case = next(c for c in json.loads((GOLDEN / "faults_optim.json").read_text()) if c["id"] == "S38")
    assert "deepcopy" in case["inputs"]["action"]
    model = network()
    optimizer = optimizer_of(model, manifold)
    train(model, optimizer, 3)
    for copied, its in (copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))):
        train(copied, its, 4, seed=2)
        reference, its_own = copy.deepcopy((model, optimizer))
        train(reference, its_own, 4, seed=2)
        assert same(copied, reference)
        assert max(constraint_error(its).values()) < 2e-6
    double, its_double = network(torch.float64), None
    its_double = optimizer_of(double, manifold)
    train(double, its_double, 2)
    assert max(constraint_error(its_double).values()) < 1e-12


def test_moving_average_is_projected_back() -> None:
    model = network()
    optimizer = optimizer_of(model, "stiefel")
    average = torch.optim.swa_utils.AveragedModel(model)
    for step in range(5):
        train(model, optimizer, 3, seed=step)
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    assert max(constraint_error(optimizer).values()) > 1e-3
    project_to_constraint_(optimizer)
    assert max(constraint_error(optimizer).values()) < 1e-6


def test_meta_parameters_are_initialised_by_the_first_step() -> None:
    with torch.device("meta"):
        model = network()
    optimizer = optimizer_of(model, "stiefel")
    for module in model:
        if isinstance(module, nn.Linear):
            assert module.weight.is_meta
    assert constraint_error(optimizer) == {}


def test_project_init_can_wait_for_the_first_step() -> None:
    model = network()
    before = model[0].weight.detach().clone()
    optimizer = optimizer_of(model, "spectral", radius=5.0, project_init=False)
    assert torch.equal(model[0].weight.detach(), before)
    train(model, optimizer, 1)
    assert max(constraint_error(optimizer).values()) < 2e-6


@pytest.mark.parametrize("manifold", ["frobenius", "spectral", "stiefel"])
def test_schedulers_scaling_and_clipping(manifold: str) -> None:
    """A cosine schedule drives it; loss scaling and clipping by norm change nothing of MACRO's part."""
    results = []
    for variant in ("plain", "scaled", "clipped"):
        model = network()
        groups = [g for g in macro_param_groups(model) if g["algorithm"] == "macro"]
        optimizer = MACRO(groups, lr=0.05, manifold=manifold, msign="polar_express")
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        scaler = torch.amp.GradScaler("cpu", enabled=variant == "scaled", init_scale=2.0**10)
        generator = torch.Generator().manual_seed(0)
        for _ in range(8):
            x = torch.randn(16, 6, generator=generator)
            optimizer.zero_grad()
            scaler.scale((model(x) - x[:, :4].sin()).square().mean()).backward()
            if variant == "clipped":
                nn.utils.clip_grad_norm_(model[0].weight, 1e-3)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        assert optimizer.param_groups[0]["lr"] < 1e-8
        results.append(model[0].weight.detach())
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_closure_frozen_and_missing_gradients() -> None:
    model = network()
    model[2].weight.requires_grad_(False)
    optimizer = optimizer_of(model, "frobenius")
    frozen = model[2].weight.detach().clone()
    calls = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().sum()
        loss.backward()
        calls.append(torch.is_grad_enabled())
        return loss

    before = model[0].weight.detach().clone()
    value = optimizer.step(closure)
    assert calls == [True]
    assert float(value.detach()) > 0
    assert torch.equal(model[2].weight, frozen)
    assert not torch.equal(model[0].weight, before)
    model[0].weight.grad = None
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].weight.detach(), before)


def test_lr_may_be_a_tensor() -> None:
    for manifold in MANIFOLDS:
        results = []
        for lr in (0.05, torch.tensor(0.05)):
            torch.manual_seed(0)
            p = nn.Parameter(torch.randn(7, 5))
            optimizer = MACRO([p], lr=lr, manifold=manifold, msign="polar_express")
            for _ in range(3):
                p.grad = torch.randn(7, 5)
                optimizer.step()
            results.append(p.detach())
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_added_groups_are_validated_and_initialised() -> None:
    p, q = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
    optimizer = MACRO([("early", p)], manifold="stiefel")
    optimizer.add_param_group({"params": [("late", q)], "manifold": "spectral", "radius": 2.0})
    assert float(torch.linalg.svdvals(q.detach())[0]) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(ValueError, match="'bias' has shape"):
        optimizer.add_param_group({"params": [("bias", nn.Parameter(torch.randn(3)))]})
    assert len(optimizer.param_groups) == 2


def test_set_radius() -> None:
    model = network(torch.bfloat16)
    optimizer = optimizer_of(model, "spectral", master_weights=True)
    set_radius(optimizer, "2.weight", 0.25)
    assert constraint_error(optimizer)["2.weight"] < 1e-6
    train(model, optimizer, 2)
    assert constraint_error(optimizer)["2.weight"] < 1e-6
    assert float(torch.linalg.svdvals(model[2].weight.detach().float())[0]) == pytest.approx(0.25, rel=1e-2)
    with pytest.raises(ValueError, match=r"no constrained parameter is called 'x'; there are 0\.weight"):
        set_radius(optimizer, "x", 1.0)
    with pytest.raises(ValueError, match="radius must be positive"):
        set_radius(optimizer, "2.weight", -1.0)


BAD = {
    "vector": ({}, torch.randn(3), ValueError, r"'w' has shape \(3,\); route it to AdamW"),
    "zero": ({}, torch.zeros(3, 3), ValueError, "'w' is zero.*initialise it"),
    "nan": ({}, torch.full((3, 3), math.nan), ValueError, "'w' has entries that are not finite"),
    "complex": (
        {},
        torch.randn(3, 3, dtype=torch.complex64),
        TypeError,
        "'w' is torch.complex64; use torch.optim.AdamW",
    ),
    "decay": ({"weight_decay": 0.1}, torch.eye(3), ValueError, "weight_decay is 0.1, but 'w' is held on the frobenius"),
    "manifold": ({"manifold": "stifel"}, torch.eye(3), ValueError, "did you mean 'stiefel'"),
    "object": ({"manifold": 3}, torch.eye(3), ValueError, "manifold must be one of euclidean"),
    "radius": ({"radius": 0.0}, torch.eye(3), ValueError, "radius of 'w' must be positive and finite, got 0.0"),
    "radius name": (
        {"radius": "big"},
        torch.eye(3),
        ValueError,
        "radius of 'w' must be a positive number, None or 'mup'",
    ),
    "radius_mult": ({"radius_mult": -1.0}, torch.eye(3), ValueError, "radius_mult must be positive.*'w'"),
    "lr": ({"lr": math.nan}, torch.eye(3), ValueError, "lr must be finite and not negative, got nan .*'w'.*schedule"),
    "negative lr": ({"lr": -0.1}, torch.eye(3), ValueError, "lr must be finite and not negative, got -0.1"),
    "lr shape": ({"lr": torch.ones(2)}, torch.eye(3), ValueError, "lr must have one element"),
    "momentum": ({"momentum": 1.0}, torch.eye(3), ValueError, r"momentum must lie in \[0, 1\), got 1.0"),
    "direction": ({"direction": "up"}, torch.eye(3), ValueError, "direction must be one of tangent, ambient, dual"),
    "scale": ({"scale": "angle"}, torch.eye(3), ValueError, "scale must be one of .*did you mean 'angular'"),
    "msign": ({"msign": "ns5"}, torch.eye(3), ValueError, "msign must be one of newton_schulz5"),
    "sigma": ({"sigma": "lanczos"}, torch.eye(3), ValueError, "sigma must be one of auto"),
    "precondition": ({"precondition": "rows"}, torch.eye(3), ValueError, "did you mean 'row'"),
    "clip": ({"clip_entries": 0.0}, torch.eye(3), ValueError, "clip_entries must be positive or None"),
    "split": ({"split": [2, 2]}, torch.eye(3), ValueError, "add up to the 3 rows of 'w'"),
    "dual": ({"manifold": "oblique_rows", "direction": "dual"}, torch.eye(3), ValueError, "no solver for oblique_rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_parameter_and_the_remedy(case: str) -> None:
    settings, weight, error, message = BAD[case]
    with pytest.raises(error, match=message):
        MACRO([("w", nn.Parameter(weight))], **settings)


def test_bad_values_that_appear_later() -> None:
    p = nn.Parameter(torch.eye(3))
    optimizer = MACRO([("w", p)])
    p.grad = torch.ones(3, 3)
    optimizer.param_groups[0]["lr"] = math.nan
    with pytest.raises(ValueError, match=r"lr must be finite.*'w'"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ValueError, match=r"weight_decay is 0\.1, but 'w'"):
        optimizer.step()
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer = MACRO(embedding.named_parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"'weight' has a sparse gradient.*SparseAdam"):
        optimizer.step()


def test_without_names_errors_give_position_and_shape() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(2,\)"):
        MACRO([nn.Parameter(torch.eye(2)), nn.Parameter(torch.ones(2))])
