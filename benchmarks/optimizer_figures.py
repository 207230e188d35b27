"""Figures of the optimizer benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.optimizer_training import Run


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_learning_rates(runs: Mapping[str, Mapping[float, Sequence[Run]]], path: Path) -> None:
    """Draw loss and activation against the learning rate for each method: means, with the range over seeds.

    Parameters
    ----------
    runs : mapping
        Of a method's label to its runs by learning rate.
    path : Path
        The PNG file.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5))
    best = min(run.loss for by_lr in runs.values() for members in by_lr.values() for run in members)
    for (label, by_lr), marker in zip(runs.items(), "osv^<>DPX*ph"):
        for axis, key in zip(axes, ("loss", "activation")):
            values = [[getattr(run, key) for run in members] for members in by_lr.values()]
            means = [statistics.fmean(group) for group in values]
            below = [mean - min(group) for mean, group in zip(means, values)]
            above = [max(group) - mean for mean, group in zip(means, values)]
            axis.errorbar(list(by_lr), means, (below, above), marker=marker, markersize=4, capsize=2, label=label)
    axes[0].set(xscale="log", xlabel="learning rate", ylabel="loss", ylim=(best - 0.02, best + 0.35))
    axes[1].set(xscale="log", yscale="log", xlabel="learning rate", ylabel="activation rms")
    axes[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_traces(traces: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], every: int, path: Path) -> None:
    """Draw what was followed through training, mean over seeds.

    Parameters
    ----------
    traces : mapping
        Of a method's label to a trace for each seed.
    every : int
        Steps between two values.
    path : Path
        The PNG file.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.4))
    titles = {"activation": "activation rms", "spectral": "largest |W|₂ (muP units)", "degrees": "degrees a step"}
    for axis, (key, title) in zip(axes, titles.items()):
        for label, runs in traces.items():
            mean = [statistics.fmean(values) for values in zip(*(run[key] for run in runs))]
            axis.plot([every * (i + 1) for i in range(len(mean))], mean, label=label)
        axis.set(title=title, xlabel="step", yscale="log")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
