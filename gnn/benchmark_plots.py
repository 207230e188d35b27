"""The benchmark's figures, as PNG bytes: a forest plot of paired gains, and dismantling curves."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_comparisons import HEADLINE, Comparison
from manifoldnorm.gnn.benchmark_plan import TASKS
from manifoldnorm.gnn.benchmark_statistics import TESTABLE_SEEDS
from manifoldnorm.gnn.missing import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETTER, WORSE, UNCLEAR = "#1b7837", "#b2182b", "#666666"
TITLES = {"independent_set": "independent set", "influence": "influence", "dismantling": "dismantling"}


def plot_gains(comparisons: list[Comparison]) -> bytes | None:
    """Draw the gains over LayerNorm with their intervals: PostDeg in every track, then all arms degree-blind."""
    tracks: dict[str, dict[str, Comparison]] = {}
    arms: dict[str, dict[str, Comparison]] = {}
    for c in comparisons:
        if c.test_set != "same_size":
            continue
        if c.arm == "postdeg":
            tracks.setdefault(_track_label(c), {})[c.task] = c
        if c.track == HEADLINE:
            arms.setdefault(ARMS[c.arm].title, {})[c.task] = c
    if not tracks:
        return None
    figure = _figure(13, 1.9 + 0.3 * (len(tracks) + len(arms)))
    grid = figure.add_gridspec(2, 3, height_ratios=[len(tracks) + 1, len(arms) + 1])
    for row, (title, block) in enumerate((("PostDeg, every track", tracks), ("every arm, GAT, degree-blind", arms))):
        for column, task in enumerate(TASKS):
            axes = figure.add_subplot(grid[row, column])
            _forest(axes, block, task, labels=column == 0)
            axes.set_title(f"{TITLES[task]}: {title}", fontsize=9)
            if row == 1:
                axes.set_xlabel("gain over LayerNorm, % (+ is better)", fontsize=8)
    return _png(figure)


def _track_label(c: Comparison) -> str:
    label = f"{c.backbone.upper()}, {c.features}"
    if c.block != "post":
        label += ", pre-norm block"
    return label + (", REINFORCE" if c.objective == "reinforce" else "")


def _forest(axes: "Axes", block: dict[str, dict[str, Comparison]], task: str, *, labels: bool) -> None:
    positions = np.arange(len(block))[::-1]
    largest = 1.0
    for position, cells in zip(positions, block.values(), strict=True):
        if task not in cells:
            continue
        gain = cells[task].gain
        testable = gain.seeds >= TESTABLE_SEEDS
        color = UNCLEAR if not testable else BETTER if gain.low > 0 else WORSE if gain.high < 0 else UNCLEAR
        axes.plot([gain.low, gain.high], [position, position], color=color, linewidth=2)
        # Hollow: too few seeds for a test.
        fill = color if testable else "white"
        axes.plot([gain.mean], [position], "o", color=color, markerfacecolor=fill, markersize=4)
        axes.annotate(
            f"{gain.mean:+.1f}  {gain.wins}/{gain.seeds}",
            (1.01, position),
            xycoords=("axes fraction", "data"),
            fontsize=7,
            va="center",
            color=color,
        )
        largest = max(largest, abs(gain.low), abs(gain.high))
    axes.axvline(0, color="black", linewidth=0.8)
    # Gains run from tenths of a per cent to tens: linear up to 2 %, logarithmic beyond.
    axes.set_xscale("symlog", linthresh=2, linscale=0.8)
    axes.set_xlim(-1.3 * largest, 1.3 * largest)
    ticks = [tick for tick in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50) if abs(tick) < 1.3 * largest]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=6.5)
    axes.minorticks_off()
    axes.set_yticks(positions, list(block) if labels else [], fontsize=8)
    axes.set_ylim(-0.7, len(block) - 0.3)
    axes.grid(axis="x", linewidth=0.3)


def plot_curves(curves: dict[str, tuple[float, ...]]) -> bytes | None:
    """Draw the mean dismantling curves, policies solid and classical references dashed."""
    if not curves:
        return None
    figure = _figure(7.5, 4.8)
    axes = figure.add_subplot()
    for label, values in curves.items():
        policy = label.startswith(("LayerNorm", "PostDeg"))
        axes.plot(
            np.linspace(0, 1, len(values)),
            values,
            "-" if policy else "--",
            linewidth=1.8 if policy else 1.1,
            label=label,
        )
    axes.set_xlim(0, 0.7)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("share of the nodes removed, static order (references: adaptive)")
    axes.set_ylabel("largest component / n")
    axes.set_title("Dismantling, mean over the same-size test graphs and seeds (lower is better)", fontsize=10)
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8)
    return _png(figure)


def _figure(width: float, height: float) -> "Figure":
    # A Figure without pyplot touches no global state and needs no display.
    figure: Any = require("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure


def _png(figure: "Figure") -> bytes:
    buffer = BytesIO()
    # Without the software's name and version the same numbers give the same bytes.
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()
