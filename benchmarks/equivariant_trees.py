"""Where curvature should matter: a narrow bottleneck between tree-like data and leaves, and embeddings of a tree."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import results_folder, write_json
from manifoldnorm.datasets.trees import Tree, balanced_tree, tree_observations
from manifoldnorm.manifolds import Euclidean
from manifoldnorm.manifolds.poincare import PoincareLogChart
from manifoldnorm.nn.hyperbolic import FromEuclidean, PoincareLinear, PoincareMLR

CURVATURES: tuple[float | None, ...] = (None, 1e-3, 0.1, 1.0)
RATES = (1e-2, 3e-2)


def _name(c: float | None) -> str:
    return "Euclidean" if c is None else f"Poincaré c={c:g}"


def _bottleneck(size: int, width: int, classes: int, c: float | None) -> nn.Module:
    if c is None:
        return nn.Sequential(nn.Linear(size, width), nn.Linear(width, classes))
    return nn.Sequential(FromEuclidean(c), PoincareLinear(size, width, c=c), PoincareMLR(width, classes, c=c))


def _classify(parts: list[tuple[Tensor, Tensor]], width: int, c: float | None, rate: float, seed: int) -> list[float]:
    """Train on the first part; returns the accuracy on the others."""
    torch.manual_seed(seed)
    (x, y), *others = parts
    model = _bottleneck(x.shape[1], width, int(y.max()) + 1, c)
    steps = 400
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return [float((model(a).argmax(-1) == b).float().mean()) for a, b in others]


def _bottleneck_row(tree: Tree, width: int, c: float | None, seeds: int) -> dict[str, Any]:
    def parts(seed: int) -> list[tuple[Tensor, Tensor]]:
        x, y = tree_observations(tree, 30, size=64, noise=0.1, generator=torch.Generator().manual_seed(seed))
        index = torch.arange(len(x)) % 30
        return [(x[m], y[m]) for m in (index < 10, (index >= 10) & (index < 15), index >= 15)]

    validation = {rate: _classify(parts(1000), width, c, rate, 1000)[0] for rate in RATES}
    rate = max(RATES, key=lambda r: validation[r])
    scores = [_classify(parts(seed), width, c, rate, seed)[1] for seed in range(seeds)]
    return {"task": f"81 leaves through {width} numbers, accuracy", "arm": _name(c), "rate": rate, "scores": scores}


def _distortion(tree: Tree, width: int, c: float | None, rate: float, seed: int) -> float:
    """Embed all nodes by stress minimisation with a free scale; returns the mean relative error of distances."""
    torch.manual_seed(seed)
    manifold = Euclidean() if c is None else PoincareLogChart(c)
    target = tree.distances()
    i, j = torch.triu_indices(len(target), len(target), 1)
    target = target[i, j]
    points = nn.Parameter(0.1 * torch.randn(len(tree.parents), width))
    scale = nn.Parameter(torch.zeros(()))
    steps = 400
    optimizer = torch.optim.Adam([points, scale], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    error = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        ratio = scale.exp() * manifold.dist(points[i], points[j]) / target
        ((ratio - 1) ** 2).mean().backward()
        error = (ratio.detach() - 1).abs().mean()
        optimizer.step()
        schedule.step()
    return float(error)


def _embedding_row(tree: Tree, width: int, c: float | None, seeds: int) -> dict[str, Any]:
    tuned = {rate: _distortion(tree, width, c, rate, 1000) for rate in (3e-2, 1e-1)}
    rate = min(tuned, key=lambda r: tuned[r])
    scores = [_distortion(tree, width, c, rate, seed) for seed in range(seeds)]
    return {"task": f"121 nodes in {width} dimensions, distortion", "arm": _name(c), "rate": rate, "scores": scores}


def run(*, quick: bool, seeds: int) -> None:
    """Print the table and write JSON."""
    console, folder = Console(), results_folder("equivariant")
    tree = balanced_tree(3, 4)
    jobs = [(row, width, c) for row in (_bottleneck_row, _embedding_row) for width in (2, 5) for c in CURVATURES]
    results: list[dict[str, Any]] = []
    for row, width, c in track(jobs[:2] if quick else jobs, description="trees", console=console):
        results.append(row(tree, width, c, seeds))
        write_json(folder / "trees.json", results)
    view = Table(title=f"balanced tree, branching 3, depth 4; mean ± standard deviation over {seeds} seeds")
    for head in ("task", "geometry", "rate", "score"):
        view.add_column(head)
    for r in results:
        spread = statistics.stdev(r["scores"]) if seeds > 1 else 0.0
        view.add_row(r["task"], r["arm"], f"{r['rate']:g}", f"{statistics.mean(r['scores']):.3f} ± {spread:.3f}")
    console.print(view)
