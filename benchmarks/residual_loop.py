"""Looped blocks: what the norm of the stream, the angle of each loop and the loss do over 1 to 16 loops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.residual_parallel import train_in_parallel
from benchmarks.residual_report import console, environment, print_table, save, save_figure
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.demos.language import LanguageTraining, language_optimizer, validation_windows
from manifoldnorm.nn.decoder import Decoder, stream_norm_penalty
from manifoldnorm.nn.residual import Decay
from manifoldnorm.nn.transformer import ResidualName, Transformer, TransformerConfig

CONTEXT, TRAINED_LOOPS = 64, 4
EVALUATED_LOOPS = (1, 2, 4, 8, 16)
PENALTY = 1e-2


@dataclass(frozen=True)
class Variant:
    """A way to control, or not, the norm of a looped stream."""

    label: str
    residual: ResidualName = "prenorm"
    readout: Literal["normalized", "raw"] = "normalized"
    penalty: float = 0.0
    normalize_between_loops: bool = False
    loop_decay: Decay | None = None


VARIANTS = (
    Variant("pre-norm, normalised readout"),
    Variant("pre-norm, raw readout", readout="raw"),
    Variant("pre-norm, norm penalty", penalty=PENALTY),
    Variant("pre-norm, norm between loops", normalize_between_loops=True),
    Variant("sphere (proj)", residual="proj"),
    Variant("sphere (proj), step / loop", residual="proj", loop_decay="harmonic"),
    Variant("sphere (geonorm)", residual="geonorm"),
)


@dataclass(frozen=True)
class Job:
    """One looped model to train."""

    variant: Variant
    seed: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """Per loop from 1: norm over sqrt(dim), angle to the loop before in radians, loss in nats a character."""

    label: str
    seed: int
    norms: list[float]
    angles: list[float]
    losses: list[float]


def loss_of_every_loop(model: Decoder, windows: Tensor, penalty: float) -> Tensor:
    """Cross-entropy averaged over the readouts after each loop, plus the penalty on the norm of the streams."""
    streams = model.streams(windows[:, :-1])[1:]
    targets = windows[:, 1:].flatten()
    losses = [F.cross_entropy(model.readout(stream).flatten(0, 1), targets) for stream in streams]
    return torch.stack(losses).mean() + penalty * stream_norm_penalty(streams)


@torch.no_grad()
def measure(model: Decoder, windows: Tensor, job: Job) -> Outcome:
    sums = torch.zeros(3, max(EVALUATED_LOOPS), dtype=torch.float64)
    for part in windows.split(64):
        streams = model.streams(part[:, :-1], loops=max(EVALUATED_LOOPS))
        targets = part[:, 1:].flatten()
        for loop, (before, after) in enumerate(pairwise(streams)):
            a, b = F.normalize(before, dim=-1), F.normalize(after, dim=-1)
            angle = 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))
            sums[0, loop] += after.norm(dim=-1).mean().item() / math.sqrt(after.shape[-1]) * len(part)
            sums[1, loop] += angle.mean().item() * len(part)
            sums[2, loop] += F.cross_entropy(model.readout(after).flatten(0, 1), targets).item() * len(part)
    norms, angles, losses = (sums / len(windows)).tolist()
    return Outcome(job.variant.label, job.seed, norms, angles, losses)


def train_loop(job: Job, text: CharacterText) -> Outcome:
    training, validation = text.split()
    torch.manual_seed(job.seed)
    variant = job.variant
    config = TransformerConfig(
        len(text.vocabulary),
        dim=64,
        layers=2,
        heads=4,
        context=CONTEXT,
        residual=variant.residual,
        normalize_update=True,
        readout=variant.readout,
        loops=TRAINED_LOOPS,
        normalize_between_loops=variant.normalize_between_loops,
        loop_decay=variant.loop_decay,
    )
    model = Transformer(config)

    def loss(decoder: Decoder, windows: Tensor) -> Tensor:
        return loss_of_every_loop(decoder, windows, variant.penalty)

    optimizer = language_optimizer(model, lr=8e-3)
    LanguageTraining(model, training, optimizer, job.steps, seed=job.seed, loss=loss).run()
    return measure(model, validation_windows(validation, CONTEXT), job)


def _by_label(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    labels = dict.fromkeys(outcome.label for outcome in outcomes)
    return {label: [outcome for outcome in outcomes if outcome.label == label] for label in labels}


def _cells(own: Sequence[Outcome], quantity: Literal["norms", "angles", "losses"], digits: int) -> list[str]:
    cells = []
    for loops in EVALUATED_LOOPS:
        values = [getattr(outcome, quantity)[loops - 1] for outcome in own]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and quantity == "losses" else ""
        cells.append(f"{statistics.fmean(values):.{digits}f}{spread}")
    return cells


def show(outcomes: Sequence[Outcome]) -> None:
    groups = _by_label(outcomes)
    columns = ("variant", *(f"{loops} loops" for loops in EVALUATED_LOOPS))
    titles: tuple[tuple[Literal["norms", "angles", "losses"], str, int], ...] = (
        ("norms", "norm of the stream over sqrt(dim)", 2),
        ("angles", "angle of the last loop (radians)", 3),
        ("losses", f"loss (nats/character), trained with {TRAINED_LOOPS} loops", 3),
    )
    for quantity, title, digits in titles:
        print_table(title, columns, [(label, *_cells(own, quantity, digits)) for label, own in groups.items()])
    baseline = next(iter(groups.values()))
    for label, own in list(groups.items())[1:]:
        differences = [a.losses[TRAINED_LOOPS - 1] - b.losses[TRAINED_LOOPS - 1] for a, b in zip(own, baseline)]
        console.print(f"{label}: {judge(differences)}")


def judge(differences: Sequence[float]) -> str:
    """Say whether paired differences (by seed) to the first variant exceed their spread."""
    mean = statistics.fmean(differences)
    size = f"{mean:+.3f} against the first variant at {TRAINED_LOOPS} loops"
    if len(differences) < 2:
        return f"{size}; one seed shows no difference"
    spread = statistics.stdev(differences)
    judged = "within the spread" if abs(mean) <= spread else "lower" if mean < 0 else "higher"
    return f"{size}, {judged} ({spread:.3f})"


def plot(outcomes: Sequence[Outcome]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4))
    loops = range(1, max(EVALUATED_LOOPS) + 1)
    for label, own in _by_label(outcomes).items():
        for axis, quantity in zip(axes, ("norms", "angles", "losses")):
            axis.plot(loops, [statistics.fmean(v) for v in zip(*(getattr(o, quantity) for o in own))], label=label)
    for axis, title in zip(axes, ("norm / sqrt(dim)", "angle of the loop (radians)", "loss (nats/character)")):
        axis.axvline(TRAINED_LOOPS, color="gray", linestyle=":")
        axis.set(xlabel="loops", title=title, xscale="log")
    axes[0].set_yscale("log")
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=7)
    save_figure(figure, "loop")
    pyplot.close(figure)


def run(text: CharacterText, *, quick: bool, workers: int) -> None:
    """Train, print the tables, write runs/residual/loop.json and loop.png."""
    console.print(f"{environment()}\ntext: {text.source}, {len(text.text)} characters, sha256 {text.sha256[:16]}")
    seeds, steps = ((0,), 30) if quick else ((0, 1, 2), 200)
    jobs = [Job(variant, seed, steps) for seed in seeds for variant in VARIANTS]
    console.print(f"2 blocks of width 64 looped {TRAINED_LOOPS} times, {steps} steps, seeds: {len(seeds)}")
    outcomes = train_in_parallel(train_loop, jobs, text, workers=workers)
    show(outcomes)
    save("loop", {"text_sha256": text.sha256, "outcomes": [asdict(outcome) for outcome in outcomes]})
    plot(outcomes)
