"""Training of the small language models, and the demonstration that compares two of them."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from manifoldnorm.datasets.text import docstring_text
from manifoldnorm.demos.language import (
    LanguageComparison,
    LanguageTraining,
    language_demo,
    language_optimizer,
    next_token_loss,
    validation_loss,
    validation_windows,
)
from manifoldnorm.nn.ngpt import NormalizedEmbedding, NormalizedLinear
from manifoldnorm.nn.transformer import Transformer, TransformerConfig

TEXT = docstring_text(["argparse", "decimal", "json", "inspect"], max_characters=50_000)


def small_model(residual: str = "prenorm", seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(
        TransformerConfig(len(TEXT.vocabulary), dim=32, layers=2, heads=2, context=32, residual=residual)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("residual", "lr"), [("prenorm", 8e-3), ("cayley", 8e-3), ("ngpt", 1.6e-2)])
def test_the_loss_on_text_falls_well_below_character_frequencies(residual: str, lr: float) -> None:
    model = small_model(residual)
    training, validation = TEXT.split(0.1)
    windows = validation_windows(validation, 32, windows=64)
    frequencies = torch.bincount(training, minlength=len(TEXT.vocabulary)).double() + 1
    entropy = -(frequencies / frequencies.sum()).log()[validation].mean().item()
    first = validation_loss(model, windows)
    loop = LanguageTraining(model, training, language_optimizer(model, lr=lr), 100, warm_up=0.05)
    last = loop.run()
    assert len(loop.losses) == 100
    assert first == pytest.approx(math.log(len(TEXT.vocabulary)), abs=0.8)
    assert validation_loss(model, windows) < entropy - 0.15
    assert last < loop.losses[0]
    for module in model.modules():
        if isinstance(module, (NormalizedLinear, NormalizedEmbedding)):
            norms = module.weight.norm(dim=module.unit_norm_dim)
            torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)


def test_training_is_reproducible_and_resumable() -> None:
    losses = []
    for pieces in ((20,), (7, 13)):
        model = small_model(seed=1)
        loop = LanguageTraining(model, TEXT.tokens, language_optimizer(model, lr=4e-3), 20, seed=2)
        for piece in pieces:
            loop.run(piece)
        losses.append(loop.losses)
    assert losses[0] == losses[1]


def test_the_rate_rises_then_falls_to_zero() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    loop = LanguageTraining(model, TEXT.tokens, optimizer, 40, warm_up=0.25)
    rates = [loop._schedule(done) for done in range(41)]
    assert rates[:11] == pytest.approx([(i + 1) / 10 for i in range(10)] + [1.0])
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[40] == pytest.approx(0.0, abs=1e-12)


def test_only_matrices_decay_and_unit_norm_models_do_not() -> None:
    model = small_model("proj")
    decaying, free = language_optimizer(model, lr=1e-3).param_groups
    assert decaying["weight_decay"] == 0.1
    assert all(p.ndim == 2 for p in decaying["params"])
    assert free["weight_decay"] == 0
    assert len(decaying["params"]) + len(free["params"]) == len(list(model.parameters()))
    (group,) = language_optimizer(small_model("ngpt"), lr=1e-3).param_groups
    assert group["weight_decay"] == 0


def test_validation_loss_is_the_mean_over_windows_and_keeps_the_mode() -> None:
    model = small_model().train()
    windows = validation_windows(TEXT.tokens, 32, windows=100)
    expected = torch.stack([next_token_loss(model, window[None]) for window in windows]).mean().item()
    assert validation_loss(model, windows) == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_the_demo_reports_both_schemes_within_its_time(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT.text)
    lines: list[str] = []
    made: list[nn.Module] = []

    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made.append(model)
        return torch.optim.AdamW(model.parameters(), lr=8e-3)

    result = language_demo(lines.append, 2.0, make_optimizer=make_optimizer, text=path)
    assert set(result.losses) == {"pre-norm", "sphere (Cayley)"}
    assert all(loss < math.log(len(TEXT.vocabulary)) + 0.8 for losses in result.losses.values() for loss in losses)
    assert result.norms["sphere (Cayley)"] == pytest.approx(1.0, abs=1e-5)
    assert result.norms["pre-norm"] > 1.01
    assert len(made) == 4  # two to measure the time of a step, two for the one seed
    report = "\n".join(lines)
    assert "text.txt" in report
    assert "one seed, which shows no difference" in report


def test_the_verdict_needs_a_difference_above_the_spread() -> None:
    def verdict(first: list[float], second: list[float]) -> str:
        return LanguageComparison({"a": first, "b": second}, {}, 1).verdict

    assert verdict([2.0, 2.1, 2.2], [2.05, 2.05, 2.25]).endswith("no difference")
    assert "lower here" in verdict([2.0, 2.1, 2.2], [1.9, 2.01, 2.1])
    assert "higher here" in verdict([2.0, 2.1, 2.2], [2.1, 2.21, 2.3])


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="check the path"):
        language_demo(print, text=tmp_path / "none.txt")
    with pytest.raises(ValueError, match="seconds"):
        language_demo(print, 0)
    model = small_model()
    with pytest.raises(ValueError, match="longer text or a shorter context"):
        LanguageTraining(model, TEXT.tokens[:20], language_optimizer(model, lr=1e-3), 1)
    with pytest.raises(ValueError, match="longer text"):
        validation_windows(TEXT.tokens[:20], 32)
