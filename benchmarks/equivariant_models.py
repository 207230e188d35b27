"""The networks of `benchmarks.equivariant`: one topology, Euclidean and hyperbolic, plain and equivariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from manifoldnorm.equivariant import (
    Curvature,
    CyclicGroup4,
    DihedralGroup4,
    EquivariantPoincareResNet,
    PlanarGroup,
    TrivialGroup,
)


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class EuclideanBlock(nn.Module):
    """Two 3x3 convolutions added to the stream."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(_conv(inputs, outputs, 3), nn.ReLU(), _conv(outputs, outputs, 3))
        self.shortcut = nn.Identity() if inputs == outputs else _conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to images."""
        return torch.relu(self.shortcut(x) + self.branch(x))


def euclidean_resnet(widths: tuple[int, int]) -> nn.Module:
    return nn.Sequential(
        _conv(1, widths[0], 3),
        nn.ReLU(),
        EuclideanBlock(widths[0], widths[0]),
        nn.AvgPool2d(2),
        EuclideanBlock(widths[0], widths[1]),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[1], 10),
    )


class EscnnResNet(nn.Module):
    """The same topology with escnn's layers on regular fields."""

    def __init__(self, widths: tuple[int, int], group: PlanarGroup) -> None:
        super().__init__()
        from manifoldnorm.equivariant.escnn import group_space, load_escnn, regular_fields

        self.escnn, space = load_escnn(), group_space(group)
        e = self.escnn.nn
        self.image = e.FieldType(space, [space.trivial_repr])
        first, second = (regular_fields(group, w) for w in widths)

        def conv(inputs: Any, outputs: Any, kernel: int) -> Any:
            return e.SequentialModule(
                e.R2Conv(inputs, outputs, kernel, padding=kernel // 2, bias=False), e.InnerBatchNorm(outputs)
            )

        def branch(inputs: Any, outputs: Any) -> Any:
            return e.SequentialModule(*conv(inputs, outputs, 3), e.ReLU(outputs), *conv(outputs, outputs, 3))

        self.stem = e.SequentialModule(*conv(self.image, first, 3), e.ReLU(first))
        self.one, self.relu_one = branch(first, first), e.ReLU(first)
        self.pool = e.PointwiseAvgPool2D(first, 2)
        self.two, self.shortcut, self.relu_two = branch(first, second), conv(first, second, 1), e.ReLU(second)
        self.orders, self.head = group.order, nn.Linear(widths[1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to scores."""
        u = self.stem(self.escnn.nn.GeometricTensor(x, self.image))
        u = self.pool(self.relu_one(u + self.one(u)))
        u = self.relu_two(self.shortcut(u) + self.two(u)).tensor
        return self.head(u.unflatten(1, (-1, self.orders)).mean((2, 3, 4)))


def poincare_resnet(widths: tuple[int, int], group: PlanarGroup, c: float | Curvature) -> nn.Module:
    return EquivariantPoincareResNet(1, 10, group=group, widths=widths, depths=(1, 1), c=c)


class Arm:
    """A row of the table: how to make the model, and whether training turns the images."""

    def __init__(self, name: str, make: Callable[[], nn.Module], *, augment: bool = False) -> None:
        self.name, self.make, self.augment = name, make, augment


# Widths are chosen for 3,400 to 3,700 parameters each.
ARMS = [
    Arm("Euclidean", lambda: euclidean_resnet((8, 12))),
    Arm("Euclidean + rotated training", lambda: euclidean_resnet((8, 12)), augment=True),
    Arm("Euclidean C4 (escnn)", lambda: EscnnResNet((5, 7), CyclicGroup4())),
    Arm("Poincaré c=0.1", lambda: poincare_resnet((8, 12), TrivialGroup(), 0.1)),
    Arm("Poincaré C4 c=0.001", lambda: poincare_resnet((4, 6), CyclicGroup4(), 1e-3)),
    Arm("Poincaré C4 c=0.1", lambda: poincare_resnet((4, 6), CyclicGroup4(), 0.1)),
    Arm("Poincaré C4 c=1", lambda: poincare_resnet((4, 6), CyclicGroup4(), 1.0)),
    Arm("Poincaré C4 c learned from 0.1", lambda: poincare_resnet((4, 6), CyclicGroup4(), Curvature(0.1))),
    Arm("Poincaré D4 c=0.1", lambda: poincare_resnet((3, 4), DihedralGroup4(), 0.1)),
]
