"""Training runs that compare optimizers: one run, the plan of all runs, and the tables."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.optimizer_models import CharacterTransformer, Method, ResidualMLP, optimizers
from benchmarks.timing import results_folder, versions
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.optim import mup_radius

ADAMW_LRS, MUON_LRS, MACRO_LRS = (3e-3, 1e-2, 3e-2), (0.01, 0.03, 0.1), (0.02, 0.05, 0.15)
METHODS = (
    Method("AdamW", "adamw", ADAMW_LRS),
    Method("Muon", "muon", MUON_LRS, weight_decay=0.1),
    Method("MuonH: Frobenius, ambient", "macro", MACRO_LRS, "frobenius", "ambient"),
    Method("MACRO Frobenius", "macro", MACRO_LRS, "frobenius"),
    Method("MACRO spectral", "macro", MACRO_LRS, "spectral"),
    Method("MACRO spectral + gain", "macro", MACRO_LRS, "spectral", gain=True),
    Method("MACRO Stiefel", "macro", MACRO_LRS, "stiefel"),
    Method("MACRO oblique rows", "macro", MACRO_LRS, "oblique_rows"),
    Method("geoopt RiemannianAdam", "geoopt", ADAMW_LRS),
)
# Small fresh batches with noisy labels and a constant lr want smaller steps than text with a decaying one.
SMALL_ADAMW, SMALL_MUON, SMALL_MACRO = (1e-3, 3e-3, 1e-2), (0.003, 0.01, 0.03), (0.005, 0.01, 0.02, 0.05)
MLP_METHODS = (
    Method("AdamW", "adamw", SMALL_ADAMW),
    Method("AdamW, decay 0.1", "adamw", SMALL_ADAMW, weight_decay=0.1),
    Method("Muon, no decay", "muon", SMALL_MUON),
    Method("Muon", "muon", SMALL_MUON, weight_decay=0.1),
    Method("MuonH: Frobenius, ambient", "macro", SMALL_MACRO, "frobenius", "ambient"),
    Method("MACRO Frobenius", "macro", SMALL_MACRO, "frobenius"),
    Method("MACRO spectral", "macro", SMALL_MACRO, "spectral"),
    Method("MACRO spectral + gain", "macro", SMALL_MACRO, "spectral", gain=True),
    Method("MACRO Stiefel", "macro", SMALL_MACRO, "stiefel"),
    Method("geoopt RiemannianAdam", "geoopt", (1e-2, 3e-2, 1e-1)),
)
CONTEXT, BATCH = 64, 16


@dataclass(frozen=True)
class Run:
    """One training run and what came of it.

    Attributes
    ----------
    task, label, lr, seed, steps
        Which run.
    loss : float
        Validation loss for text, mean loss of the last 50 fresh batches for the residual network.
    activation : float
        Root mean square of the residual stream's end, on held-out input.
    bound : float
        What the radii bound it by, for constrained weights; infinite otherwise.
    spectral : float
        Largest spectral norm of a hidden matrix, in units of sqrt(rows / columns).
    seconds : float
        Process time.
    """

    task: str
    label: str
    lr: float
    seed: int
    steps: int
    loss: float
    activation: float
    bound: float
    spectral: float
    seconds: float


def train_mlp(method: Method, lr: float, seed: int, steps: int) -> Run:
    """Classify Gaussian vectors by a random teacher with a fifth of the labels replaced; constant lr."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10)).requires_grad_(False)
    with torch.no_grad():
        teacher[0].weight.mul_(3.0)
    model = ResidualMLP()
    start = time.process_time()
    parts = optimizers(model, method, lr, other_lr=3e-3)
    generator = torch.Generator().manual_seed(1000 + seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 32, generator=generator)
        labels = teacher(x).argmax(-1)
        noise = torch.rand(64, generator=generator) < 0.2
        labels = torch.where(noise, torch.randint(10, (64,), generator=generator), labels)
        loss = functional.cross_entropy(model(x), labels)
        model.zero_grad()
        loss.backward()
        for part in parts:
            part.step()
        losses.append(float(loss.detach()))
    seconds = time.process_time() - start
    held_out = torch.randn(512, 32, generator=generator)
    with torch.no_grad():
        activation = float(model.features(held_out).square().mean().sqrt())
        size = float(held_out.square().mean().sqrt())
    bound = model.gain_bound(lambda w: _radius(w, method)) * size
    return Run(
        "residual MLP", method.label, lr, seed, steps, statistics.fmean(losses[-50:]), activation, bound,
        largest_spectral_norm(model), seconds,
    )  # fmt: skip


def _radius(weight: Tensor, method: Method) -> float:
    """Upper bound on the spectral norm that the method's constraint guarantees."""
    if method.kind == "geoopt":
        return mup_radius("frobenius", *weight.shape)
    if method.kind != "macro" or method.gain:
        return math.inf
    radius = mup_radius(method.manifold, *weight.shape)  # type: ignore[arg-type]
    return radius * math.sqrt(weight.shape[0]) if method.manifold == "oblique_rows" else radius


def train_text(method: Method, lr: float, seed: int, steps: int, text: CharacterText, normalize: bool) -> Run:
    """Predict characters; lr falls linearly to zero."""
    torch.manual_seed(seed)
    training, validation = text.split()
    model = CharacterTransformer(len(text.vocabulary), context=CONTEXT, normalize=normalize)
    start = time.process_time()
    parts = optimizers(model, method, lr, other_lr=3e-3)
    schedules = [torch.optim.lr_scheduler.LinearLR(part, 1.0, 1e-3, steps) for part in parts]
    generator = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        loss = _text_loss(model, training, BATCH, generator)
        model.zero_grad()
        loss.backward()
        for part, schedule in zip(parts, schedules):
            part.step()
            schedule.step()
    seconds = time.process_time() - start
    fixed = torch.Generator().manual_seed(0)
    with torch.no_grad():
        value = statistics.fmean(float(_text_loss(model, validation, 64, fixed)) for _ in range(8))
        tokens = _windows(validation, 64, fixed)[:, :-1]
        activation = float(model.features(tokens).square().mean().sqrt())
    task = "characters" if normalize else "characters, no norm layers"
    return Run(task, method.label, lr, seed, steps, value, activation, math.inf, largest_spectral_norm(model), seconds)


def _windows(tokens: Tensor, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(tokens) - CONTEXT - 1, (count, 1), generator=generator)
    return tokens[starts + torch.arange(CONTEXT + 1)]


def _text_loss(model: nn.Module, tokens: Tensor, count: int, generator: torch.Generator) -> Tensor:
    window = _windows(tokens, count, generator)
    return functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def largest_spectral_norm(model: nn.Module) -> float:
    """Largest |W|_2 sqrt(columns / rows) of the linear layers between embedding and head, gains included."""
    sizes = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "head" not in name:
            rows, columns = module.weight.shape
            sizes.append(float(torch.linalg.matrix_norm(module.weight.detach(), 2)) * math.sqrt(columns / rows))
    return max(sizes)


class Campaign:
    """All runs; finished ones are kept in a file, so that an interrupted campaign goes on where it stopped."""

    def __init__(self, path: Path, header: dict[str, object], console: Console) -> None:
        self.path, self.console = path, console
        self.header = header
        self.runs: list[Run] = []
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["header"] == header:
                self.runs = [Run(**run) for run in stored["runs"]]

    def find(self, task: str, label: str, lr: float, seed: int, steps: int) -> Run | None:
        """Return a finished run."""
        key = (task, label, lr, seed, steps)
        return next((r for r in self.runs if (r.task, r.label, r.lr, r.seed, r.steps) == key), None)

    def add(self, run: Run) -> None:
        """Keep a run."""
        self.runs.append(run)
        self.path.write_text(json.dumps({"header": self.header, "runs": [asdict(r) for r in self.runs]}, indent=1))
        self.console.print(f"{run.task}: {run.label} lr {run.lr} seed {run.seed}: {run.loss:.4f} ({run.seconds:.1f} s)")

    def table(self, task: str) -> Table:
        """Return a row for each method at its best lr (by mean loss over the seeds that it has), with spreads."""
        table = Table(title=task)
        columns = ("method", "lr", "seeds", "loss", "activation rms", "bound", "|W|2", "seconds", "loss at other lrs")
        for name in columns:
            table.add_column(name, justify="left" if name == "method" else "right")
        for label in dict.fromkeys(run.label for run in self.runs if run.task == task):
            by_lr = {
                lr: [r for r in self.runs if (r.task, r.label, r.lr) == (task, label, lr)]
                for lr in sorted({r.lr for r in self.runs if (r.task, r.label) == (task, label)})
            }
            best = self.best_lr(by_lr)
            runs = by_lr[best]
            others = " ".join(
                f"{lr:g}:{_mean(r.loss for r in members):.3f}" for lr, members in by_lr.items() if lr != best
            )
            table.add_row(
                label, f"{best:g}", str(len(runs)), _spread(r.loss for r in runs), _spread(r.activation for r in runs),
                f"{runs[0].bound:.3g}", _spread(r.spectral for r in runs), f"{_mean(r.seconds for r in runs):.1f}",
                others,
            )  # fmt: skip
        return table

    @staticmethod
    def best_lr(by_lr: dict[float, list[Run]]) -> float:
        """Return the lr of the smallest mean loss on the first seed, which every lr has."""
        return min(by_lr, key=lambda lr: min(by_lr[lr], key=lambda run: run.seed).loss)


def _mean(values: Iterator[float]) -> float:
    return statistics.fmean(values)


def _spread(values: Iterator[float]) -> str:
    numbers = list(values)
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.3f} ± {deviation:.3f}"


def run_campaign(text: CharacterText, *, seeds: int, steps: int, mlp_steps: int, tasks: list[str]) -> None:
    """Train everything: on seed 0 at every lr, on the other seeds at the best one (the MLP at every lr)."""
    console = Console(width=160)
    folder = results_folder("optimizers")
    header: dict[str, object] = {**versions("geoopt"), "text": text.source, "sha256": text.sha256}
    console.print(header)
    if "mlp" in tasks:
        campaign = Campaign(folder / "train-mlp.json", header, console)
        for seed in range(seeds):
            for method in MLP_METHODS:
                for lr in method.lrs:
                    if campaign.find("residual MLP", method.label, lr, seed, mlp_steps) is None:
                        campaign.add(train_mlp(method, lr, seed, mlp_steps))
        console.print(campaign.table("residual MLP"))
    for task, name, normalize in (("text", "characters", True), ("text-no-norm", "characters, no norm layers", False)):
        if task not in tasks:
            continue
        campaign = Campaign(folder / f"train-{task}.json", header, console)
        for seed in range(seeds):
            for method in METHODS:
                lrs = list(method.lrs)
                if seed > 0:
                    first = {
                        lr: [r for r in campaign.runs if (r.task, r.label, r.lr) == (name, method.label, lr)]
                        for lr in lrs
                    }
                    lrs = [campaign.best_lr(first)]
                for lr in lrs:
                    if campaign.find(name, method.label, lr, seed, steps) is None:
                        campaign.add(train_text(method, lr, seed, steps, text, normalize))
        console.print(campaign.table(name))
