"""Complex domains on seeded tasks: what geometry, batch norm and per-site statistics change, and what they do not.

    python -m benchmarks.complex_domains [--seeds 5] [--tasks clutter sites actions emg nodes speed]

Accuracies in per cent, mean and standard deviation over the seeds; one thread. Writes runs/complex_domains/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import cache

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import complex_domains_methods as methods
from benchmarks.complex_domains_methods import Cells, accuracy
from benchmarks.timing import interleaved, results_folder, versions, write_json
from manifoldnorm.datasets.clutter import EASY, HARD, NEAR_BOUNDARY, Clutter, clutter, site_shift
from manifoldnorm.datasets.node_labels import LabelledGraph, digits_graph, hierarchy_graph
from manifoldnorm.datasets.skeleton import skeleton_actions
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.nn.complex_ball import ComplexBallGraphNetwork
from manifoldnorm.signal import lattice_reflection

Scores = dict[str, float]
ORDER = 3


def _cells(data: Clutter) -> Cells:
    return Cells(*data.features(ORDER), data.labels)


def clutter_scores(setting: str, seed: int) -> Scores:
    """Classify clutter cells, 60 training and 100 test cells of each of five classes."""
    settings = {"easy": EASY, "hard": HARD, "near boundary": NEAR_BOUNDARY}[setting]
    raw, raw_test = clutter(settings, 60, 100, seed=seed)
    train, test = _cells(raw), _cells(raw_test)
    y, m = train.labels, train.manifold
    points, test_points = train.points, test.points
    mean = m.mean(points)
    flat, flat_test = methods.real_parts(points), methods.real_parts(test_points)
    log, log_test = methods.tangent(m, points, mean), methods.tangent(m, test_points, mean)
    predictions = {
        "log power, logistic": methods.logistic(methods.log_power(raw.signals), y, methods.log_power(raw_test.signals)),
        "log periodogram, logistic": methods.logistic(
            methods.log_periodogram(raw.signals), y, methods.log_periodogram(raw_test.signals)
        ),
        "Euclidean, logistic": methods.logistic(flat, y, flat_test),
        "Euclidean, 15 neighbours": methods.nearest_neighbors(torch.cdist(flat_test, flat), y),
        "Kähler, 15 neighbours": methods.nearest_neighbors(methods.pairwise_distances(m, test_points, points), y),
        "Kähler, nearest mean": methods.pairwise_distances(m, test_points, methods.class_means(m, points, y)).argmin(1),
        "tangent, logistic": methods.logistic(log, y, log_test),
        "Euclidean, perceptron": methods.perceptron(flat, y, flat_test, seed),
        "tangent, perceptron": methods.perceptron(log, y, log_test, seed),
    }
    for name, normalization in (("Siegel network, no norm", "none"), ("Siegel network, batch norm", "batch")):
        predictions[name] = methods.predict(methods.train_network(train, normalization=normalization, seed=seed), test)
    return {name: accuracy(p, test.labels) for name, p in predictions.items()}


@cache
def _two_sites(seed: int) -> tuple[Cells, Cells, methods.ReflectionNetwork, methods.ReflectionNetwork]:
    """Return training and test cells before any shift, and the networks with shared and with per-site statistics."""
    raw, raw_test = clutter(EASY, 60, 100, seed=seed)
    # As in the task's definition the power matrix, which the shift leaves alone, is not used.
    train, test = (
        cells._replace(power=torch.eye(cells.power.shape[-1], dtype=cells.power.dtype).expand_as(cells.power))
        for cells in (_cells(raw), _cells(raw_test))
    )
    here = torch.zeros(len(train.labels), dtype=torch.long)
    shared = methods.train_network(train, normalization="batch", seed=seed)
    return train, test, shared, methods.train_network(train, here, normalization="domain", domains=[0, 1], seed=seed)


def site_scores(magnitude: str, seed: int) -> Scores:
    """Train at one site, test at another that an unknown isometry moved; per-site means use its unlabelled cells."""
    train, here, shared, per_site = _two_sites(seed)
    shift = torch.Generator().manual_seed(1000 + seed)
    test = here._replace(reflection=site_shift(here.reflection, float(magnitude), generator=shift))
    y, m = train.labels, train.manifold
    points, test_points = train.points, test.points
    mean = m.mean(points)
    flat, flat_test = methods.real_parts(points), methods.real_parts(test_points)
    centered, centered_test = methods.recentered(m, points), methods.recentered(m, test_points)
    logs = methods.tangent(m, points, mean), methods.tangent(m, test_points, mean), methods.tangent(m, test_points)
    nearest = [
        methods.pairwise_distances(m, b, methods.class_means(m, a, y)).argmin(1)
        for a, b in ((points, test_points), (centered, centered_test))
    ]
    per_site.body.refit(test.reflection, 1)
    predictions = {
        "Euclidean, logistic": methods.logistic(flat, y, flat_test),
        "Euclidean, logistic, site mean removed": methods.logistic(
            flat - flat.mean(0), y, flat_test - flat_test.mean(0)
        ),
        "Kähler, nearest mean": nearest[0],
        "Kähler, nearest mean, recentred per site": nearest[1],
        "tangent, logistic": methods.logistic(logs[0], y, logs[1]),
        "tangent, logistic, recentred per site": methods.logistic(logs[0], y, logs[2]),
        "Siegel network, shared statistics": methods.predict(shared, test),
        "Siegel network, statistics per site": methods.predict(per_site, test, 1),
    }
    return {name: accuracy(p, test.labels) for name, p in predictions.items()}


def action_scores(_: str, seed: int) -> Scores:
    """Recognise six actions of a subject that was not trained on, from the order-two models of four limbs."""
    data = skeleton_actions(8, classes=6, subjects=4, seed=seed)
    power, reflection = lattice_reflection(data.signals, 2, ridge=1e-2)
    level = power.diagonal(dim1=-2, dim2=-1).real.mean(-1)
    everyone = Cells(power / level[:, None, None], reflection, data.labels)
    held_out = data.subjects == seed % 4
    train, test = (Cells(*(part[mask] for part in everyone)) for mask in (~held_out, held_out))
    who = data.subjects[~held_out]
    y, m = train.labels, train.manifold
    points, test_points = train.points, test.points
    mean = m.mean(points)
    per_subject = torch.zeros(len(points), methods.tangent(m, points[:2], mean).shape[1], dtype=torch.float64)
    for subject in who.unique():
        per_subject[who == subject] = methods.tangent(m, points[who == subject])
    predictions = {
        "log periodogram, logistic": methods.logistic(
            methods.log_periodogram(data.signals[~held_out]), y, methods.log_periodogram(data.signals[held_out])
        ),
        "Euclidean, logistic": methods.logistic(methods.real_parts(points), y, methods.real_parts(test_points)),
        "tangent, logistic": methods.logistic(
            methods.tangent(m, points, mean), y, methods.tangent(m, test_points, mean)
        ),
        "tangent, logistic, recentred per subject": methods.logistic(per_subject, y, methods.tangent(m, test_points)),
    }
    for name, normalization in (("Siegel network, no norm", "none"), ("Siegel network, batch norm", "batch")):
        predictions[name] = methods.predict(methods.train_network(train, normalization=normalization, seed=seed), test)
    model = methods.train_network(train, who, normalization="domain", domains=[0, 1, 2, 3], seed=seed)
    model.body.refit(test.reflection, seed % 4)
    predictions["Siegel network, statistics per subject"] = methods.predict(model, test, seed % 4)
    return {name: accuracy(p, test.labels) for name, p in predictions.items()}


def emg_scores(person: str, seed: int) -> Scores:
    """Train on a person's first EMG session, test on the second: real covariances against those of analytic signals.

    Both are handled as Hermitian matrices, so that only the data differ.
    """
    from manifoldnorm.datasets.emg import emg

    data, space = emg(length=200), HPD()
    real = data.signals.double() - data.signals.double().mean(1, keepdim=True)
    first, second = (data.in_recordings(f"{person}_s{i}") for i in (1, 2))
    keep = torch.rand(int(first.sum()), generator=torch.Generator().manual_seed(seed)) < 0.7
    y = data.gesture[first][keep]
    scores = {}
    for name, z in (("real", real.to(torch.complex128)), ("analytic", analytic_signal(real))):
        matrices = z.mT @ z.conj() / z.shape[1]
        level = matrices.diagonal(dim1=-2, dim2=-1).real.mean(-1)[:, None, None]
        matrices = 0.5 * (matrices + matrices.mH) + 1e-3 * level * torch.eye(8, dtype=matrices.dtype)
        a, b = matrices[first][keep], matrices[second]
        mean, other = space.mean(a), space.mean(b)
        for suffix, base in (("", mean), (", recentred per session", other)):
            predicted = methods.logistic(
                methods.real_parts(space.center(a, mean)), y, methods.real_parts(space.center(b, base))
            )
            scores[f"{name} covariance, tangent logistic{suffix}"] = accuracy(predicted, data.gesture[second])
    return scores


def analytic_signal(x: Tensor) -> Tensor:
    """Return x + i times its Hilbert transform along dimension 1."""
    n = x.shape[1]
    gain = torch.zeros(n, dtype=x.dtype)
    gain[0], gain[1 : (n + 1) // 2] = 1, 2
    if n % 2 == 0:
        gain[n // 2] = 1
    return torch.fft.ifft(torch.fft.fft(x, dim=1) * gain[:, None], dim=1)


class EuclideanGraphNetwork(nn.Module):
    """The same graph network with real features, ReLU and `torch.nn.BatchNorm1d`: mean over neighbours, linear map."""

    def __init__(self, in_features: int, hidden: tuple[int, ...], classes: int, *, normalize: bool) -> None:
        super().__init__()
        sizes = [hidden[0], *hidden]
        self.embed = nn.Linear(in_features, hidden[0])
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes, hidden))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) if normalize else nn.Identity() for b in hidden)
        self.classifier = nn.Linear(hidden[-1], classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        source, target = edge_index
        degree = torch.ones(len(x)).index_add(0, target, torch.ones(len(target)))
        h = self.embed(x)
        for layer, norm in zip(self.layers, self.norms):
            h = layer(h)
            h = torch.relu(norm(h.index_add(0, target, h[source]) / degree[:, None]))
        return self.classifier(h)


def node_scores(name: str, seed: int) -> Scores:
    """Classify nodes from five labelled nodes per class; complex networks have half the width of real ones."""
    graph: LabelledGraph = (
        digits_graph(noise=1.0, seed=seed) if name == "digits" else hierarchy_graph(depth=6, noise=1.0, seed=seed)
    )
    train, test = graph.split(5, seed=seed)
    classes = int(graph.labels.max()) + 1
    scores = {
        "features alone, logistic": accuracy(
            methods.logistic(graph.features[train], graph.labels[train], graph.features[test]), graph.labels[test]
        )
    }
    makers: dict[str, Callable[[], nn.Module]] = {
        "real graph network, no norm": lambda: EuclideanGraphNetwork(
            graph.features.shape[1], (16, 16), classes, normalize=False
        ),
        "real graph network, batch norm": lambda: EuclideanGraphNetwork(
            graph.features.shape[1], (16, 16), classes, normalize=True
        ),
        "complex ball network, no norm": lambda: ComplexBallGraphNetwork(
            graph.features.shape[1], (8, 8), classes, normalize=False
        ),
        "complex ball network, batch norm": lambda: ComplexBallGraphNetwork(
            graph.features.shape[1], (8, 8), classes, normalize=True
        ),
    }
    for title, make in makers.items():
        torch.manual_seed(seed)
        model = make()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-3)
        for _ in range(60):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(graph.features, graph.edge_index)[train], graph.labels[train])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model(graph.features, graph.edge_index).argmax(1)
        scores[title] = accuracy(predicted[test], graph.labels[test])
    return scores


TASKS: dict[str, tuple[tuple[str, ...], Callable[[str, int], Scores]]] = {
    "clutter": (("easy", "hard", "near boundary"), clutter_scores),
    "sites": (("0", "0.5", "1"), site_scores),
    "actions": (("held-out subject",), action_scores),
    "emg": (("mg", "rr"), emg_scores),
    "nodes": (("digits", "hierarchy"), node_scores),
}


def run_task(name: str, seeds: int) -> dict[str, dict[str, list[float]]]:
    """Return accuracies by method, column and seed."""
    columns, scores = TASKS[name]
    table: dict[str, dict[str, list[float]]] = {}
    for column in columns:
        for seed in range(seeds):
            for method, value in scores(column, seed).items():
                table.setdefault(method, {}).setdefault(column, []).append(value)
    return table


def show(name: str, table: dict[str, dict[str, list[float]]], console: Console) -> None:
    """Print mean and standard deviation over seeds."""
    columns = TASKS[name][0]
    output = Table(title=f"{name}: accuracy in per cent, mean (standard deviation) over seeds")
    output.add_column("method")
    for column in columns:
        output.add_column(column, justify="right")
    for method, cells in table.items():
        values = [torch.tensor(cells[column], dtype=torch.float64) for column in columns]
        output.add_row(
            method, *(f"{v.mean():.1f} ({v.std():.1f})" if len(v) > 1 else f"{v.mean():.1f}" for v in values)
        )
    console.print(output)


def plot(results: dict[str, dict[str, dict[str, list[float]]]], path: str) -> None:
    """Draw the site-shift curves, the task that per-domain statistics are for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for method, cells in results["sites"].items():
        axes.plot([float(c) for c in cells], [sum(v) / len(v) for v in cells.values()], marker="o", label=method)
    axes.set(xlabel="site shift (tangent standard deviation)", ylabel="accuracy at the shifted site, %", ylim=(0, 100))
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Run the tasks and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, "speed"], default=[*TASKS, "speed"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    console.print(versions("numpy", "scikit-learn", "geoopt", "geomstats"))
    folder = results_folder("complex_domains")
    results = {}
    for name in arguments.tasks:
        start = time.process_time()
        if name == "speed":
            from benchmarks.complex_domains_speed import speed_ratios

            write_json(folder / "speed.json", speed_ratios(console, interleaved))
        else:
            results[name] = run_task(name, arguments.seeds)
            show(name, results[name], console)
            write_json(folder / f"{name}.json", {"versions": versions("numpy", "scikit-learn"), **results[name]})
        console.print(f"{name}: {time.process_time() - start:.0f} s of processor time")
    if "sites" in results:
        plot(results, str(folder / "sites.png"))


if __name__ == "__main__":
    main()
