"""The demonstrations as tables on the terminal."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.optim import Optimizer

from manifoldnorm.datasets.emg import emg
from manifoldnorm.demos.emg import NORMS, TEST, TRAIN, CrossSession, cross_session_accuracy
from manifoldnorm.demos.language import language_demo
from manifoldnorm.manifolds import Manifold, SPDLogCholesky, SPDLogEuclidean
from manifoldnorm.optim import MACROWithAdamW, macro_param_groups


def show_emg(*, seeds: int, epochs: int) -> None:
    """Train SPD networks on EMG covariances, without batch norm, with shared and with per-recording statistics."""
    console = Console()
    start = time.perf_counter()
    # Matrices of 8 x 8 give a second thread nothing to do but wait.
    torch.set_num_threads(1)
    data = emg()
    session = CrossSession.of(data, data.covariances())
    console.print(
        f"[bold]Gestures from muscle signals, across sessions[/bold]\n"
        f"{len(data)} windows of {data.signals.shape[1]} samples from {len(data.recordings)} real recordings, "
        f"{len(data.gestures)} gestures; each window is an 8 x 8 covariance matrix.\n"
        f"Train on {', '.join(TRAIN)}; test on {', '.join(TEST)}, recorded after the electrodes were put on anew.\n"
    )
    geometries: list[tuple[str, Manifold]] = [
        ("log-Euclidean", SPDLogEuclidean()),
        ("log-Cholesky", SPDLogCholesky()),
    ]
    runs = [("-", geometries[0][1], "none")]
    runs += [(name, manifold, norm) for norm in NORMS[1:] for name, manifold in geometries]
    table = Table("batch norm", "geometry", "test accuracy", title=f"{seeds} seeds, mean ± standard deviation")
    jobs = [(run, seed) for run in runs for seed in range(seeds)]
    scores: dict[tuple[str, str], list[float]] = {}
    for (name, manifold, norm), seed in track(jobs, description="training", console=console, transient=True):
        value = cross_session_accuracy(manifold, norm, session, seed=seed, epochs=epochs)
        scores.setdefault((norm, name), []).append(value)
    for (norm, name), values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        table.add_row(norm, name, f"{statistics.mean(values):.3f} ± {spread:.3f}")
    console.print(table)
    console.print(f"({time.perf_counter() - start:.0f} s; chance is {1 / len(data.gestures):.2f})\n")


def macro_optimizer(model: nn.Module) -> Optimizer:
    """Hold the hidden matrices at a fixed spectral norm with MACRO, and step everything else with AdamW."""
    groups = macro_param_groups(model, macro={"lr": 0.05, "manifold": "spectral", "radius": "mup"}, adamw={"lr": 8e-3})
    return MACROWithAdamW(groups)


def show_language(text: str | None) -> None:
    """Train a small language model with a residual stream on the sphere beside the fair baseline, both with MACRO."""
    console = Console()
    console.print("[bold]Characters of English text: two residual streams, hidden matrices stepped by MACRO[/bold]")

    def print_line(line: str) -> None:  # a sample of docstring text is full of what rich reads as markup
        console.print(line, markup=False, highlight=False)

    language_demo(print_line, 75, make_optimizer=macro_optimizer, text=None if text is None else Path(text))
