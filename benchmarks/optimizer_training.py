"""Training runs that compare optimizers: one run, the plan of all runs, and the tables."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.optimizer_figures import draw_learning_rates
from benchmarks.optimizer_models import CharacterTransformer, Method, ResidualMLP, optimizers
from benchmarks.timing import results_folder, versions
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.optim import mup_radius

# Five learning rates for everybody, a factor of about three apart, placed so that the best one is not at an end.
ADAMW_LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MUON_LRS = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
MACRO_LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
# geoopt's steps are measured in the Frobenius norm of the whole matrix.
GEOOPT_LRS = (0.1, 0.3, 1.0, 3.0, 10.0)
METHODS = (
    Method("AdamW, decay 0.1", "adamw", ADAMW_LRS, weight_decay=0.1),
    Method("Muon, decay 0.1", "muon", MUON_LRS, weight_decay=0.1),
    Method("MuonH: Frobenius, ambient", "macro", MACRO_LRS, "frobenius", "ambient"),
    Method("MACRO Frobenius", "macro", MACRO_LRS, "frobenius"),
    Method("MACRO oblique rows", "macro", MACRO_LRS, "oblique_rows"),
    Method("MACRO spectral", "macro", MACRO_LRS, "spectral"),
    Method("MACRO spectral + gain", "macro", MACRO_LRS, "spectral", gain=True),
    Method("MACRO Stiefel", "macro", MACRO_LRS, "stiefel"),
    Method("geoopt RiemannianAdam, Frobenius", "geoopt", GEOOPT_LRS),
)
# Small fresh batches with noisy labels and a constant lr want smaller steps than text with a decaying one.
SMALL_LRS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SMALL_GEOOPT_LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
MLP_METHODS = (
    Method("AdamW, no decay", "adamw", SMALL_LRS),
    Method("AdamW, decay 0.1", "adamw", SMALL_LRS, weight_decay=0.1),
    Method("Muon, no decay", "muon", SMALL_LRS),
    Method("Muon, decay 0.1", "muon", SMALL_LRS, weight_decay=0.1),
    Method("MuonH: Frobenius, ambient", "macro", SMALL_LRS, "frobenius", "ambient"),
    Method("MACRO Frobenius", "macro", SMALL_LRS, "frobenius"),
    Method("MACRO oblique rows", "macro", SMALL_LRS, "oblique_rows"),
    Method("MACRO spectral", "macro", SMALL_LRS, "spectral"),
    Method("MACRO spectral + gain", "macro", SMALL_LRS, "spectral", gain=True),
    Method("MACRO Stiefel", "macro", SMALL_LRS, "stiefel"),
    Method("geoopt RiemannianAdam, Frobenius", "geoopt", SMALL_GEOOPT_LRS),
)
CONTEXT, BATCH = 64, 16
TASKS = {"mlp": "residual MLP", "text": "characters", "text-no-norm": "characters, no norm layers"}


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
        TASKS["mlp"], method.label, lr, seed, steps, statistics.fmean(losses[-50:]), activation, bound,
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
    task = TASKS["text" if normalize else "text-no-norm"]
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
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps({"header": self.header, "runs": [asdict(r) for r in self.runs]}, indent=1))
        draft.replace(self.path)
        self.console.print(f"{run.task}: {run.label} lr {run.lr} seed {run.seed}: {run.loss:.4f} ({run.seconds:.1f} s)")

    def by_lr(self, task: str, method: Method) -> dict[float, list[Run]]:
        """Return a method's runs gathered by the learning rates of its grid."""
        runs = [run for run in self.runs if (run.task, run.label) == (task, method.label)]
        return {lr: [run for run in runs if run.lr == lr] for lr in method.lrs}

    def table(self, task: str, methods: Sequence[Method]) -> Table:
        """Return a row for each method at the lr of its least mean loss, with standard deviations over seeds."""
        table = Table(title=task)
        columns = ("method", "lr", "seeds", "loss", "activation rms", "bound", "|W|2", "seconds", "loss at other lrs")
        for name in columns:
            table.add_column(name, justify="left" if name == "method" else "right")
        for method in methods:
            by_lr = self.by_lr(task, method)
            means = {lr: statistics.fmean(run.loss for run in runs) for lr, runs in by_lr.items()}
            best = min(means, key=means.__getitem__)
            runs = by_lr[best]
            edge = " (edge)" if best in (min(means), max(means)) else ""
            table.add_row(
                method.label, f"{best:g}{edge}", str(len(runs)), _spread(r.loss for r in runs),
                _spread(r.activation for r in runs), f"{runs[0].bound:.3g}", _spread(r.spectral for r in runs),
                f"{statistics.fmean(r.seconds for r in runs):.1f}",
                " ".join(f"{lr:g}:{mean:.3f}" for lr, mean in means.items() if lr != best),
            )  # fmt: skip
        return table


def _spread(values: Iterator[float]) -> str:
    numbers = list(values)
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.3f} ± {deviation:.3f}"


def run_campaign(text: CharacterText, *, seeds: int, steps: int, mlp_steps: int, tasks: list[str]) -> None:
    """Train every method at every lr of its grid on every seed, seed by seed; print tables and draw figures."""
    console = Console(width=160)
    folder = results_folder("optimizers")
    header: dict[str, object] = {**versions("geoopt"), "text": text.source, "sha256": text.sha256}
    console.print(header)
    for key in tasks:
        name = TASKS[key]
        methods, length = (MLP_METHODS, mlp_steps) if key == "mlp" else (METHODS, steps)
        campaign = Campaign(folder / f"train-{key}.json", {**header, "steps": length}, console)
        for seed in range(seeds):
            for method, lr in ((m, lr) for m in methods for lr in m.lrs):
                if campaign.find(name, method.label, lr, seed, length) is not None:
                    continue
                if key == "mlp":
                    campaign.add(train_mlp(method, lr, seed, length))
                else:
                    campaign.add(train_text(method, lr, seed, length, text, normalize=key == "text"))
        console.print(campaign.table(name, methods))
        draw_learning_rates({m.label: campaign.by_lr(name, m) for m in methods}, folder / f"train-{key}.png")
