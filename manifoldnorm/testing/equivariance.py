"""A check that a module commutes with a group of image symmetries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class ImageGroup(Protocol):
    """What the check needs of a group: its order, products, and its actions on images and features."""

    order: int

    def mul(self, g: int, h: int) -> int:
        """Return the index of g h."""

    def act(self, g: int, image: Tensor) -> Tensor:
        """Transform images (..., H, W)."""

    def act_features(self, g: int, features: Tensor) -> Tensor:
        """Transform features (B, C, |G|, H, W)."""


@dataclass(frozen=True)
class EquivarianceReport:
    """Outcome of `check_equivariance`; errors are relative to the largest entry of the output.

    Attributes
    ----------
    errors : tuple of float
        |f(g x) - g f(x)| for each element g, the whole batch turned alike.
    mixed_error : float
        The same with another element for each sample; NaN for a batch of one.
    composition_error : float
        |g (h x) - (g h) x| over all pairs: whether the actions are those of the group.
    variation : float
        Spread of the output over its largest entry; zero means that the check says nothing.
    tolerance : float
        What the errors are compared with.
    """

    errors: tuple[float, ...]
    mixed_error: float
    composition_error: float
    variation: float
    tolerance: float

    @property
    def max_error(self) -> float:
        """The largest of all errors."""
        found = [*self.errors, self.composition_error]
        found += [] if self.mixed_error != self.mixed_error else [self.mixed_error]
        return max(found)

    @property
    def passed(self) -> bool:
        """Whether the output varies and every error is within the tolerance."""
        return self.variation > 1e-3 and self.max_error <= self.tolerance

    def __str__(self) -> str:
        verdict = "equivariant" if self.passed else "NOT equivariant"
        if self.variation <= 1e-3:
            verdict = "no verdict, the output is constant"
        each = ", ".join(f"{error:.1e}" for error in self.errors)
        return (
            f"{verdict} (tolerance {self.tolerance:.0e}): by element [{each}], one element per sample "
            f"{self.mixed_error:.1e}, composition {self.composition_error:.1e}, variation {self.variation:.1e}"
        )


@torch.no_grad()
def check_equivariance(
    module: Callable[[Tensor], Tensor], group: ImageGroup, x: Tensor, *, atol: float | None = None
) -> EquivarianceReport:
    """Compare f(g x) with g f(x) for all elements, for one element per sample, and check the actions themselves.

    Images and outputs of four dimensions turn; features of five dimensions turn and permute axis 2; outputs of other
    dimensions must be invariant. Use a batch of two or more, height unlike width, and both train and eval mode: layers
    with statistics of their own per orientation pass some of these and fail others. Buffers are put back afterwards.

    Parameters
    ----------
    module : callable
        A module or function of one tensor.
    group : ImageGroup
        For example `manifoldnorm.equivariant.CyclicGroup4()`.
    x : Tensor
        Images (B, C, H, W) or features (B, C, |G|, H, W).
    atol : float, optional
        Relative tolerance; by default 1e-10 in float64, 1e-4 in float32.

    Returns
    -------
    EquivarianceReport
        With `passed`, `max_error`, and a readable `str`.

    Examples
    --------
    >>> from manifoldnorm.equivariant import CyclicGroup4
    >>> x = torch.randn(2, 3, 6, 5)
    >>> check_equivariance(torch.relu, CyclicGroup4(), x).passed
    True
    >>> check_equivariance(torch.nn.Conv2d(3, 4, 3), CyclicGroup4(), x).passed
    False
    """
    if x.ndim not in (4, 5):
        raise ValueError(f"x must be images (B, C, H, W) or features (B, C, |G|, H, W), got shape {tuple(x.shape)}")
    tolerance = (1e-10 if x.dtype == torch.float64 else 1e-4) if atol is None else atol
    buffers = {name: b.clone() for name, b in module.named_buffers()} if isinstance(module, nn.Module) else {}

    def run(inputs: Tensor) -> Tensor:
        output = module(inputs)
        if isinstance(module, nn.Module):
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        return output

    y = run(x)
    scale = max(float(y.abs().max()), float(torch.finfo(y.dtype).tiny)) if y.numel() else 1.0

    def error(actual: Tensor, expected: Tensor) -> float:
        if actual.shape != expected.shape:
            return float("inf")
        deviation = float((actual - expected).abs().max()) / scale
        return deviation if deviation == deviation else float("inf")

    errors = tuple(error(run(_act(group, g, x)), _act(group, g, y)) for g in range(group.order))
    pairs = [(g, h) for g in range(group.order) for h in range(group.order)]
    composition = max(
        float((_act(group, g, _act(group, h, t)) - _act(group, group.mul(g, h), t)).abs().max())
        for g, h in pairs
        for t in (x, y)
    )
    variation = float(y.max() - y.min()) / scale if y.numel() else 0.0
    return EquivarianceReport(errors, _mixed_error(run, group, x, y, error), composition, variation, tolerance)


def _act(group: ImageGroup, g: int, t: Tensor) -> Tensor:
    if t.ndim == 5:
        return group.act_features(g, t)
    return group.act(g, t) if t.ndim == 4 else t


def _mixed_error(
    run: Callable[[Tensor], Tensor],
    group: ImageGroup,
    x: Tensor,
    y: Tensor,
    error: Callable[[Tensor, Tensor], float],
) -> float:
    """Turn each sample by another element; of a non-square image only those that keep its shape."""
    if len(x) < 2:
        return float("nan")
    usable = [g for g in range(group.order) if _act(group, g, x[:1]).shape == x[:1].shape]
    chosen = [usable[(i + 1) % len(usable)] for i in range(len(x))]
    turned = [torch.cat([_act(group, g, t[i : i + 1]) for i, g in enumerate(chosen)]) for t in (x, y)]
    return error(run(turned[0]), turned[1])
