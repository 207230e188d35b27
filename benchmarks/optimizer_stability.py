"""What stays bounded: activations, norms and angles in training, the angle of a step, the spectral sphere's norm."""

from __future__ import annotations

import math
import statistics

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from benchmarks.optimizer_figures import draw_traces
from benchmarks.optimizer_models import CharacterTransformer, Method, optimizers
from benchmarks.optimizer_training import METHODS, largest_spectral_norm
from benchmarks.timing import results_folder, versions, write_json
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.optim import MACRO, rotation_angle

# Fixed beforehand, not chosen by what came out.
LRS = {
    "AdamW, decay 0.1": 0.01,
    "Muon, decay 0.1": 0.03,
    "MACRO Frobenius": 0.05,
    "MACRO spectral": 0.05,
    "MACRO Stiefel": 0.05,
}
EVERY = 10


def follow(text: CharacterText, *, seeds: int, steps: int) -> None:
    """Measure all three; print tables, write JSON and a figure."""
    console = Console(width=140)
    chosen = [method for method in METHODS if method.label in LRS]
    traces = {m.label: [_trace(m, LRS[m.label], seed, steps, text) for seed in range(seeds)] for m in chosen}
    console.print(_trace_table(traces, seeds))
    angles = {f"{rows}x{columns}": _angles(rows, columns) for rows, columns in ((32, 32), (64, 16), (16, 64))}
    console.print(_angle_table(angles))
    norms = {
        sigma: [_norms(sigma, seed, 4 * steps) for seed in range(seeds)] for sigma in ("exact", "schatten", "power")
    }
    console.print(_norm_table(norms, 4 * steps))
    folder = results_folder("optimizers")
    content = {"versions": versions(), "sha256": text.sha256, "traces": traces, "angles": angles, "norms": norms}
    write_json(folder / "stability.json", content)
    draw_traces(traces, EVERY, folder / "stability.png")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left")
    return table


def _cell(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {deviation:.3f}"


def _trace_table(traces: dict[str, list[dict[str, list[float]]]], seeds: int) -> Table:
    table = _table(
        f"transformer without norm layers, constant lr, {seeds} seeds: at the end, and largest over training",
        "method", "activation rms, end", "largest", "|W|2, end", "degrees a step, end", "spread over matrices",
    )  # fmt: skip
    for label, runs in traces.items():
        cells = [
            [r["activation"][-1] for r in runs],
            [max(r["activation"]) for r in runs],
            [r["spectral"][-1] for r in runs],
            [r["degrees"][-1] for r in runs],
            [r["unevenness"][-1] for r in runs],
        ]
        table.add_row(label, *(_cell(values) for values in cells))
    return table


def _trace(method: Method, lr: float, seed: int, steps: int, text: CharacterText) -> dict[str, list[float]]:
    """Train on characters without norm layers and look every few steps."""
    torch.manual_seed(seed)
    training, validation = text.split()
    model = CharacterTransformer(len(text.vocabulary), normalize=False)
    parts = optimizers(model, method, lr, other_lr=3e-3)
    hidden = {id(p) for name, p in model.named_parameters() if "blocks" in name}
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.stack([validation[i * 64 : i * 64 + 64] for i in range(16)])
    trace: dict[str, list[float]] = {"activation": [], "spectral": [], "degrees": [], "unevenness": []}
    for index in range(steps):
        starts = torch.randint(len(training) - 65, (16, 1), generator=generator)
        window = training[starts + torch.arange(65)]
        loss = functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        with rotation_angle(parts[0]) as angles:
            for part in parts:
                part.step()
        if index % EVERY == EVERY - 1:
            order = [p for group in parts[0].param_groups for p in group["params"]]
            turned = [math.degrees(angles[str(i)]) for i, p in enumerate(order) if id(p) in hidden]
            with torch.no_grad():
                trace["activation"].append(float(model.features(held_out).square().mean().sqrt()))
            trace["spectral"].append(largest_spectral_norm(model))
            trace["degrees"].append(statistics.fmean(turned))
            trace["unevenness"].append(statistics.pstdev(turned) / statistics.fmean(turned))
    return trace


def _angles(rows: int, columns: int, lr: float = 0.02, steps: int = 100) -> dict[str, list[float]]:
    """Angle of every step under random gradients, by scale rule, on the Frobenius sphere; of Muon for comparison."""
    result = {}
    for scale in ("angular", "radius", "Muon, decay 0.1"):
        generator = torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.randn(rows, columns, generator=generator) / math.sqrt(columns))
        optimizer: torch.optim.Optimizer
        if scale.startswith("Muon"):
            optimizer = torch.optim.Muon([weight], lr=lr, weight_decay=0.1)
        else:
            optimizer = MACRO([weight], lr=lr, manifold="frobenius", scale=scale)  # type: ignore[arg-type]
        turned = []
        for _ in range(steps):
            weight.grad = torch.randn(rows, columns, generator=generator)
            with rotation_angle(optimizer) as angles:
                optimizer.step()
            turned.append(angles["0"])
        result[scale] = turned
    return result


def _angle_table(angles: dict[str, dict[str, list[float]]]) -> Table:
    table = _table(
        f"angle of a step on the Frobenius sphere, lr 0.02, 100 steps; arctan(0.02) = {math.atan(0.02):.8f}",
        "shape", "scale", "mean", "standard deviation",
    )  # fmt: skip
    for shape, by_scale in angles.items():
        for scale, values in by_scale.items():
            table.add_row(shape, scale, f"{statistics.fmean(values):.8f}", f"{statistics.stdev(values):.1e}")
    return table


def _norms(sigma: str, seed: int, steps: int, size: int = 96) -> list[float]:
    """|W|_2 / radius after every step on a noisy linear objective, which drives all singular values to the radius."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(size, size, generator=generator)
    weight = nn.Parameter(torch.randn(size, size, generator=generator))
    optimizer = MACRO([weight], lr=0.02, momentum=0.0, manifold="spectral", radius=1.0, sigma=sigma)  # type: ignore[arg-type]
    norms = []
    for _ in range(steps):
        weight.grad = target + torch.randn(size, size, generator=generator)
        optimizer.step()
        norms.append(float(torch.linalg.matrix_norm(weight.detach().double(), 2)))
    return norms


def _norm_table(norms: dict[str, list[list[float]]], steps: int) -> Table:
    table = _table(
        f"|W|2 over the radius of a 96 x 96 weight on a noisy linear objective, {steps} steps, less one",
        "sigma", "smallest", "median of the second half", "largest",
    )  # fmt: skip
    for sigma, runs in norms.items():
        settled = [value for run in runs for value in run[steps // 2 :]]
        everything = [value for run in runs for value in run]
        values = (min(everything), statistics.median(settled), max(everything))
        table.add_row(sigma, *(f"{value - 1:+.2e}" for value in values))
    return table
