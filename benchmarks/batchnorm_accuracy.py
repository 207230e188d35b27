"""What a Lie group batch norm is good for: accuracy without it, with it, and with one running state per domain.

    python -m benchmarks.batchnorm --accuracy

trains small networks on EMG windows (another session of the same people is the test), radar-like echoes (another site),
skeleton-like rotation sequences (another subject) and connectomes (other people; there are no domains), with every
geometry that fits the data. A seed draws the training set, the initial weights and the order of the batches; arms of
one seed differ in nothing but the norm. For the norm per domain, the state of the test domain comes from its unlabelled
points.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import results_folder, versions, write_json
from manifoldnorm import SPDAffineInvariant, SPDCholeskyRightInvariant, SPDLogCholesky, SPDLogEuclidean
from manifoldnorm.datasets.connectomes import connectomes
from manifoldnorm.datasets.emg import emg
from manifoldnorm.datasets.radar_like import radar_like
from manifoldnorm.datasets.rotations import skeleton_like
from manifoldnorm.manifolds import Manifold
from manifoldnorm.manifolds.correlation_cholesky import (
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
)
from manifoldnorm.manifolds.correlation_logarithm import (
    CorrelationLogScaled,
    CorrelationOffLog,
)
from manifoldnorm.manifolds.correlation_points import correlation_from_covariance
from manifoldnorm.manifolds.pullback import Flat
from manifoldnorm.manifolds.rotation_mean import UniquenessWarning
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm
from manifoldnorm.nn.correlation_net import CorNet
from manifoldnorm.nn.lienet import LieNet
from manifoldnorm.nn.spdnet import SPDNet

SPD = (SPDAffineInvariant(), SPDLogEuclidean(), SPDLogCholesky(), SPDCholeskyRightInvariant())
CORRELATION = (
    CorrelationEuclideanCholesky(),
    CorrelationLogEuclideanCholesky(),
    CorrelationOffLog(),
    CorrelationLogScaled(),
)
ROTATION = (Rotations("left"), Rotations("right"))
ARMS = ("none", "shared", "per domain")
Norm = Callable[[tuple[int, ...]], nn.Module]


@dataclass(frozen=True)
class Split:
    """Points of one kind with labels and domains; the test points are from other domains than the training ones."""

    train: Tensor
    train_labels: Tensor
    train_domains: list[str]
    test: Tensor
    test_labels: Tensor
    test_domains: list[str]
    classes: int

    def map(self, function: Callable[[Tensor], Tensor]) -> Split:
        """Apply a function to all points."""
        return Split(
            function(self.train), self.train_labels, self.train_domains,
            function(self.test), self.test_labels, self.test_domains, self.classes,
        )  # fmt: skip


def emg_split(seed: int) -> Split:
    """Train on 600 windows of the first sessions, test on the second ones."""
    data = emg()
    first = data.in_recordings("mg_s1", "rr_s1")
    order = torch.randperm(int(first.sum()), generator=torch.Generator().manual_seed(seed))[:600]
    x = data.covariances()
    x = x / torch.diagonal(x[first], dim1=-2, dim2=-1).mean()
    names = [data.recordings[r] for r in data.recording.tolist()]
    train = first.nonzero().squeeze(1)[order]
    test = (~first).nonzero().squeeze(1)
    return Split(
        x[train], data.gesture[train], [names[i] for i in train.tolist()],
        x[test], data.gesture[test], [names[i] for i in test.tolist()], len(data.gestures),
    )  # fmt: skip


def by_domain(x: Tensor, labels: Tensor, domains: Tensor, test: int) -> Split:
    """Test on one domain."""
    held_out = domains == test
    names = [str(d) for d in domains.tolist()]
    train_names = [name for name, out in zip(names, held_out.tolist()) if not out]
    return Split(
        x[~held_out], labels[~held_out], train_names,
        x[held_out], labels[held_out], [str(test)] * int(held_out.sum()), int(labels.max()) + 1,
    )  # fmt: skip


def radar_split(seed: int) -> Split:
    """Test on the site whose number is the seed modulo 4."""
    data = radar_like(60, size=12, seed=seed)
    return by_domain(data.covariances, data.labels, data.sites, seed % 4)


def skeleton_split(seed: int) -> Split:
    """Test on the subject whose number is the seed modulo 4."""
    data = skeleton_like(12, seed=seed)
    return by_domain(data.rotations, data.labels, data.subjects, seed % 4)


def connectome_split(seed: int) -> Split:
    """Test on 30 of the 86 people, drawn by the seed."""
    data = connectomes()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    train, test = order[30:], order[:30]
    return Split(
        data.matrices[train], data.patient[train], ["all"] * len(train),
        data.matrices[test], data.patient[test], ["all"] * len(test), 2,
    )  # fmt: skip


def make_norm(manifold: Manifold, arm: str, split: Split) -> Norm | None:
    """Return the maker of the arm's norm."""
    options = {"mean_steps": 2, "dtype": torch.float64}
    if arm == "none":
        return None
    if arm == "shared":
        return lambda shape: LieBatchNorm(manifold, shape, **options)
    domains = sorted({*split.train_domains, *split.test_domains})
    return lambda shape: DomainBatchNorm(manifold, shape, domains=domains, **options)


def spd_network(manifold: Manifold, split: Split, norm: Norm | None, generator: torch.Generator) -> SPDNet:
    """Make an SPDNet that halves the size."""
    n = split.train.shape[-1]
    maker = None if norm is None else lambda m: norm((m, m))
    return SPDNet((n, n // 2), split.classes, norm=maker, generator=generator, dtype=torch.float64)


def correlation_network(manifold: Manifold, split: Split, norm: Norm | None, generator: torch.Generator) -> CorNet:
    """Make a CorNet in the geometry's chart."""
    assert isinstance(manifold, Flat)
    n = split.train.shape[-1]
    layer = None if norm is None else norm((n, n))
    return CorNet(manifold, n, split.classes, norm=layer, dtype=torch.float64)


def rotation_network(manifold: Manifold, split: Split, norm: Norm | None, generator: torch.Generator) -> LieNet:
    """Make a LieNet of one block with statistics per joint."""
    frames, joints = split.train.shape[1:3]
    maker = None if norm is None else lambda j: norm((j, 3, 3))
    return LieNet(
        joints, frames, split.classes, pools=(2,), norm=maker, generator=generator, dtype=torch.float64
    )  # fmt: skip


def accuracy(net: nn.Module, split: Split, arm: str, seed: int, epochs: int) -> float:
    """Train with Adam and return the accuracy on the test domains."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
    count = len(split.train)
    for _ in range(epochs):
        for batch in torch.randperm(count, generator=generator).split(64):
            if len(batch) < 16:
                continue
            optimizer.zero_grad()
            scores = predict(net, split.train[batch], [split.train_domains[i] for i in batch.tolist()], arm)
            nn.functional.cross_entropy(scores, split.train_labels[batch]).backward()
            optimizer.step()
    net.eval()
    correct = 0
    for domain in sorted(set(split.test_domains)):
        rows = torch.tensor([i for i, name in enumerate(split.test_domains) if name == domain])
        if arm == "per domain":
            net.refit(split.test[rows], domain)
        with torch.no_grad():
            scores = predict(net, split.test[rows], [domain] * len(rows), arm)
        correct += int((scores.argmax(1) == split.test_labels[rows]).sum())
    return correct / len(split.test)


def predict(net: nn.Module, x: Tensor, domains: Sequence[str], arm: str) -> Tensor:
    """Run the network, with the domains if its norm wants them."""
    scores: Tensor = net(x, list(domains)) if arm == "per domain" else net(x)
    return scores


@dataclass(frozen=True)
class Task:
    """A data set with the geometries and the network that fit it."""

    name: str
    split: Callable[[int], Split]
    geometries: tuple[Manifold, ...]
    network: Callable[[Manifold, Split, Norm | None, torch.Generator], nn.Module]
    epochs: int
    domains: bool = True


def _correlations(split: Callable[[int], Split]) -> Callable[[int], Split]:
    return lambda seed: split(seed).map(correlation_from_covariance)


TASKS = (
    Task("EMG, covariance", emg_split, SPD, spd_network, 15),
    Task("EMG, correlation", _correlations(emg_split), CORRELATION, correlation_network, 15),
    Task("radar-like, covariance", radar_split, SPD, spd_network, 15),
    Task("radar-like, correlation", _correlations(radar_split), CORRELATION, correlation_network, 15),
    Task("skeleton-like, rotation", skeleton_split, ROTATION, rotation_network, 15),
    Task("connectomes, correlation", connectome_split, CORRELATION, correlation_network, 10, domains=False),
)


def measure(task: Task, seeds: Sequence[int]) -> list[dict[str, object]]:
    """Return a row for each geometry of a task, with each arm's accuracies over the seeds."""
    rows: list[dict[str, object]] = []
    splits = {seed: task.split(seed) for seed in seeds}
    for geometry in task.geometries:
        row: dict[str, object] = {"data": task.name, "geometry": repr(geometry)}
        for arm in ARMS if task.domains else ARMS[:2]:
            results = []
            for seed in seeds:
                torch.manual_seed(seed)
                split = splits[seed]
                norm = make_norm(geometry, arm, split)
                net = task.network(geometry, split, norm, torch.Generator().manual_seed(seed))
                results.append(accuracy(net, split, arm, seed, task.epochs))
            row[arm] = results
        rows.append(row)
    return rows


def spread(values: Sequence[float]) -> str:
    """Format mean and standard deviation in percent."""
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def plot(rows: Sequence[dict[str, object]]) -> None:
    """Draw the mean accuracy of each arm, one group of points a row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.32 * len(rows) + 1))
    for arm, marker in zip(ARMS, "xso"):
        heights = [i for i, row in enumerate(rows) if arm in row]
        values = [row[arm] for row in rows if arm in row]
        axes.errorbar(
            [100 * mean(v) for v in values], heights, xerr=[100 * stdev(v) for v in values], fmt=marker, label=arm
        )  # type: ignore[arg-type]
    axes.set_yticks(
        range(len(rows)), [f"{row['data']}: {str(row['geometry']).split('(')[0]}" for row in rows], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy (%), mean and standard deviation over seeds")
    axes.legend(title="batch norm")
    figure.tight_layout()
    figure.savefig(results_folder("batchnorm") / "accuracy.png", dpi=150)


def run(*, quick: bool = False) -> None:
    """Measure all tasks, print the table, and write JSON and a plot under runs/batchnorm/."""
    # Rotations of a subject spread over more than a right angle; the layer takes two steps from the chordal mean.
    warnings.simplefilter("ignore", UniquenessWarning)
    seeds = range(2 if quick else 5)
    start = time.perf_counter()
    rows = [row for task in TASKS for row in measure(task, seeds)]
    table = Table("data", "geometry", "no norm", "LieBN", "LieBN per domain", "per domain - none, paired")
    for row in rows:
        last = "per domain" if "per domain" in row else "shared"
        gain = [a - b for a, b in zip(row[last], row["none"])]  # type: ignore[call-overload]
        cells = [spread(row[arm]) if arm in row else "" for arm in ARMS]  # type: ignore[arg-type]
        table.add_row(str(row["data"]), str(row["geometry"]), *cells, spread(gain))
    console = Console(width=170)
    console.print(table)
    console.print(f"{len(seeds)} seeds, {time.perf_counter() - start:.0f} s, {versions()}")
    write_json(
        results_folder("batchnorm") / "accuracy.json", {"versions": versions(), "seeds": len(seeds), "rows": rows}
    )
    plot(rows)
