"""Accuracy of equivariant and ordinary networks, Euclidean and hyperbolic, on digits; hyperbolic space on trees."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.equivariant_kernels import saved_bytes
from benchmarks.equivariant_models import ARMS, Arm
from benchmarks.timing import results_folder, versions, write_json
from manifoldnorm.datasets.digits import digit_splits
from manifoldnorm.datasets.images import ImageSplits, turn_randomly
from manifoldnorm.nn.batchnorm import RiemannianBatchNorm
from manifoldnorm.nn.hyperbolic_batchnorm import recalibrate

RATES = (1e-2, 3e-2)
LEVEL = 0.8
BATCH = 100


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(-1) == labels).float().mean())


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in torch.split(x, 300)])


def train(arm: Arm, data: ImageSplits, *, rate: float, epochs: int, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """Train with Adam and a cosine learning rate; returns the model, its validation curve and the CPU seconds."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    model = arm.make()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    x, y = data.train
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5 * (1 + math.cos(math.pi * t / steps)))
    curve, seconds = [], 0.0
    for _ in range(epochs):
        start = time.process_time()
        model.train()
        order = torch.randperm(len(x), generator=generator)
        for rows in torch.split(order, BATCH)[: len(x) // BATCH]:
            batch = turn_randomly(x[rows], generator) if arm.augment else x[rows]
            optimizer.zero_grad()
            F.cross_entropy(model(batch), y[rows]).backward()
            optimizer.step()
            schedule.step()
        seconds += time.process_time() - start
        model.eval()
        curve.append(_accuracy(_logits(model, data.validation[0]), data.validation[1]))
    return model, {"curve": curve, "seconds": seconds}


def evaluate(model: nn.Module, data: ImageSplits) -> dict[str, float]:
    """Measure a trained model on the test images, upright and turned."""
    x, y = data.test
    turned = turn_randomly(x, torch.Generator().manual_seed(0))
    upright = _logits(model, x)
    spread = float(upright.std())
    change = max(float((_logits(model, torch.rot90(x, k, (-2, -1))) - upright).abs().max()) for k in (1, 2, 3))
    rotated = _logits(model, turned)
    merged = torch.where(y == 9, 6, y)
    found = rotated.argmax(-1)
    result = {
        "upright": _accuracy(upright, y),
        "rotated": _accuracy(rotated, y),
        "rotated_6_is_9": float((torch.where(found == 9, 6, found) == merged).float().mean()),
        "logit_change": change / spread,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    kinds = (RiemannianBatchNorm, nn.modules.batchnorm._BatchNorm)
    norms = [m for m in model.modules() if isinstance(m, kinds)]
    kept = [{name: b.clone() for name, b in m.named_buffers()} for m in norms]
    for m in norms:
        m.train()
    result["batch_statistics"] = _accuracy(_logits(model, x), y)
    for m, buffers in zip(norms, kept):
        m.eval()
        for name, b in m.named_buffers():
            b.copy_(buffers[name])
    if all(isinstance(m, RiemannianBatchNorm) for m in norms):
        recalibrate(model, torch.split(data.train[0], 100))
        result["recalibrated"] = _accuracy(_logits(model, x), y)
    return result


def run_arm(arm: Arm, data: ImageSplits, *, epochs: int, seeds: int) -> dict[str, Any]:
    """Choose the learning rate on the validation images with a seed of its own, then train with the others."""
    validation = {}
    for rate in RATES:
        _, log = train(arm, data, rate=rate, epochs=epochs, seed=1000)
        validation[rate] = log["curve"][-1]
    rate = max(RATES, key=lambda r: validation[r])
    fresh, batch = arm.make().train(), data.train[0][:BATCH]
    saved = saved_bytes(lambda: fresh(batch), [p.data for p in fresh.parameters()]) / 2**20
    runs = []
    for seed in range(seeds):
        model, log = train(arm, data, rate=rate, epochs=epochs, seed=seed)
        reached = [i + 1 for i, value in enumerate(log["curve"]) if value >= LEVEL]
        runs.append(
            {**evaluate(model, data), **log, "saved_mib": saved, "epochs_to_level": reached[0] if reached else None}
        )
    return {"arm": arm.name, "rate": rate, "validation": validation, "runs": runs}


def _spread(runs: list[dict[str, Any]], key: str, digits: int = 3) -> str:
    values = [r[key] for r in runs if r.get(key) is not None]
    if len(values) < len(runs):
        return f"{len(values)} of {len(runs)}" if key == "epochs_to_level" else "-"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values) if len(values) > 1 else 0:.{digits}f}"


def table(results: list[dict[str, Any]]) -> Table:
    view = Table(title=f"digits, mean ± standard deviation over {len(results[0]['runs'])} seeds")
    heads = ("model", "params", "rate", "upright", "rotated", "rotated, 6=9", "batch stats", "recalibrated")
    for head in (*heads, "largest gap", "logit change", f"epochs to {LEVEL:.0%}", "MiB", "CPU s"):
        view.add_column(head)
    for r in results:
        runs = r["runs"]
        view.add_row(
            r["arm"],
            str(int(runs[0]["parameters"])),
            f"{r['rate']:g}",
            *(_spread(runs, k) for k in ("upright", "rotated", "rotated_6_is_9", "batch_statistics", "recalibrated")),
            f"{max(abs(run['upright'] - run['batch_statistics']) for run in runs):.4f}",
            f"{max(run['logit_change'] for run in runs):.1e}",
            _spread(runs, "epochs_to_level", 1),
            f"{runs[0]['saved_mib']:.1f}",
            f"{statistics.mean(run['seconds'] for run in runs):.0f}",
        )
    return view


def run(*, quick: bool, only: str | None, seeds: int, epochs: int) -> None:
    """Train all arms, or those whose name holds `only`; print the table and write JSON and a picture."""
    console, folder = Console(), results_folder("equivariant")
    data = digit_splits()
    arms = [a for a in ARMS if not quick or a.name in ("Euclidean", "Poincaré C4 c=0.1")]
    arms = [a for a in arms if only is None or only in a.name]
    name = "accuracy" if only is None else f"accuracy_{only.replace(' ', '_')}"
    results: list[dict[str, Any]] = []
    header = {"versions": versions("scikit-learn", "escnn"), "epochs": epochs, "batch": BATCH, "rates": RATES}
    for arm in track(arms, description="arms", console=console):
        try:
            results.append(run_arm(arm, data, epochs=epochs, seeds=seeds))
        except ModuleNotFoundError as error:
            console.print(f"{arm.name}: skipped, {error}")
        write_json(folder / f"{name}.json", {**header, "results": results})
    console.print(table(results))
    _plot(results, folder / f"{name}.png")


def _plot(results: list[dict[str, Any]], path: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    names = [r["arm"] for r in results]
    for offset, key in ((-0.2, "upright"), (0.2, "rotated")):
        values = [[run[key] for run in r["runs"]] for r in results]
        positions = [i + offset for i in range(len(names))]
        left.barh(positions, [statistics.mean(v) for v in values], 0.38, label=key)
        for position, value in zip(positions, values):
            left.plot(value, [position] * len(value), "k.", markersize=3)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("test accuracy")
    left.legend()
    for r in results:
        curve = torch.tensor([run["curve"] for run in r["runs"]]).mean(0)
        right.plot(range(1, len(curve) + 1), curve, label=r["arm"])
    right.set_xlabel("epoch")
    right.set_ylabel("validation accuracy, upright")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
