"""Classifiers of autoregressive features: baselines, and networks with or without a Riemannian batch norm."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

from manifoldnorm.linalg import logm
from manifoldnorm.manifolds import Product
from manifoldnorm.manifolds.siegel import MatrixBall
from manifoldnorm.nn.matrix_ball import SiegelNetwork
from manifoldnorm.signal import reflection_manifold


class Cells(NamedTuple):
    """Power and reflection matrices with their class."""

    power: Tensor
    reflection: Tensor
    labels: Tensor

    @property
    def manifold(self) -> Product:
        """The Kähler product that they are points of."""
        return reflection_manifold(self.power.shape[-1], self.reflection.shape[-3])

    @property
    def points(self) -> Tensor:
        """The points, as vectors."""
        return self.manifold.pack(self.power, *self.reflection.unbind(-3))


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions in per cent."""
    return 100 * float((predicted == labels).double().mean())


def real_parts(x: Tensor) -> Tensor:
    """Return real and imaginary parts of a batch as real vectors."""
    return torch.view_as_real(x.contiguous().resolve_conj()).flatten(1)


def log_periodogram(signals: Tensor) -> Tensor:
    """Return the logarithm of each channel's Hann periodogram, less its mean."""
    window = torch.hann_window(signals.shape[1], periodic=False, dtype=torch.float64)
    spectrum = torch.fft.fft(signals * window[:, None], dim=1).abs().square().log().flatten(1)
    return spectrum - spectrum.mean(1, keepdim=True)


def log_power(signals: Tensor) -> Tensor:
    """Return the logarithm of each channel's power."""
    return signals.abs().square().mean(1).log()


def _standardized(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    mean, spread = train.mean(0), train.std(0).clamp_min(1e-9)
    return (train - mean) / spread, (test - mean) / spread


def logistic(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Predict by l2-regularised multinomial logistic regression on standardised features."""
    a, b = _standardized(train, test)
    model = LogisticRegression(max_iter=1000, C=0.3).fit(a.numpy(), labels.numpy())
    return torch.from_numpy(model.predict(b.numpy()))


def perceptron(train: Tensor, labels: Tensor, test: Tensor, seed: int) -> Tensor:
    """Predict by one hidden layer of 64 units with early stopping off and weight decay 1e-2."""
    a, b = _standardized(train, test)
    model = MLPClassifier((64,), alpha=1e-2, max_iter=150, learning_rate_init=3e-3, random_state=seed)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the iteration limit is the training budget
        model.fit(a.numpy(), labels.numpy())
    return torch.from_numpy(model.predict(b.numpy()))


def nearest_neighbors(distances: Tensor, labels: Tensor, k: int = 15) -> Tensor:
    """Predict by a vote of the k nearest; `distances` is (test, train)."""
    votes = labels[distances.topk(k, largest=False).indices]
    return nn.functional.one_hot(votes, int(labels.max()) + 1).sum(1).argmax(1)


def pairwise_distances(manifold: Product, test: Tensor, train: Tensor) -> Tensor:
    """Return squared distances, a slice of rows at a time."""
    return torch.cat([manifold.dist2(rows[:, None], train) for rows in test.split(100)])


def class_means(manifold: Product, points: Tensor, labels: Tensor) -> Tensor:
    """Return the Fréchet mean of each class."""
    return torch.stack([manifold.mean(points[labels == k]) for k in range(int(labels.max()) + 1)])


def recentered(manifold: Product, points: Tensor, mean: Tensor | None = None) -> Tensor:
    """Move points so that their mean (or the given one) comes to the origin."""
    mean = manifold.mean(points) if mean is None else mean
    origin = manifold.origin(points.shape[-1], dtype=points.dtype)
    return manifold.uncenter(manifold.center(points, mean), origin)


def tangent(manifold: Product, points: Tensor, mean: Tensor | None = None) -> Tensor:
    """Return weighted real tangent coordinates seen from the mean of the points (or the given one)."""
    mean = manifold.mean(points) if mean is None else mean
    parts = manifold.unpack(manifold.center(points, mean))
    return torch.cat([math.sqrt(w) * real_parts(part) for part, w in zip(parts, manifold.weights)], 1)


class ReflectionNetwork(nn.Module):
    """A Siegel network of the reflection matrices whose logits are joined by a linear map of the log power matrix."""

    def __init__(self, channels: int, order: int, classes: int, *, normalization: str, domains: list[Hashable] | None):
        super().__init__()
        self.body = SiegelNetwork(
            MatrixBall(), (order, 4), (channels, channels), classes,
            normalization=normalization, domains=domains, dtype=torch.complex128,
        )  # fmt: skip
        self.head = nn.Linear(2 * channels * channels, classes, bias=False, dtype=torch.float64)

    def forward(self, cells: Cells, domain: Hashable | Tensor | None = None) -> Tensor:
        """Return logits."""
        return self.body(cells.reflection, domain) + self.head(real_parts(logm(cells.power)))


def train_network(
    cells: Cells,
    domain: Tensor | None = None,
    *,
    normalization: str,
    domains: list[Hashable] | None = None,
    seed: int,
    steps: int = 60,
) -> ReflectionNetwork:
    """Train on the full batch with Adam, learning rate 2e-2.

    Weight decay (not on batch norm weights) is the better of 1e-3 and 5e-2 for each kind, on seeds 0 to 2 of the easy
    clutter task: 5e-2
    with batch norms, 1e-3 without, where shrinking the mixing weights contracts all points to the origin.
    """
    torch.manual_seed(seed)
    d, order = cells.power.shape[-1], cells.reflection.shape[-3]
    model = ReflectionNetwork(d, order, int(cells.labels.max()) + 1, normalization=normalization, domains=domains)
    scales = [p for name, p in model.named_parameters() if "norms" in name and name.endswith("weight")]
    others = [p for p in model.parameters() if all(p is not s for s in scales)]
    decay = 1e-3 if normalization == "none" else 5e-2
    groups = [{"params": others, "weight_decay": decay}] + ([{"params": scales}] if scales else [])
    optimizer = torch.optim.Adam(groups, lr=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(cells, domain), cells.labels).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def predict(model: ReflectionNetwork, cells: Cells, domain: Hashable | None = None) -> Tensor:
    """Predict classes with running statistics."""
    return model(cells, domain).argmax(1)
