"""The groups of rotations by 90 degrees, with and without reflections, and how they act on images and features.

Element index i = r + 4 f stands for g = R^r F^f: a reflection of the width axis (f = 1), then r quarter turns. On an
image g acts as T_g(I) = rot90(flip(I), r). This is also the order and the action of escnn's `rot2dOnR2(4)` and
`flipRot2dOnR2(4)`.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PlanarGroup:
    """A group of symmetries of the square, acting on the pixel grid exactly.

    Objects are immutable values: equal when they are the same group.

    Attributes
    ----------
    name : str
        "C1", "C4" or "D4".
    order : int
        Number of elements |G|.
    """

    name: str
    order: int

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def elements(self) -> range:
        """The element indices."""
        return range(self.order)

    def _check(self, *elements: int) -> None:
        for g in elements:
            if not 0 <= g < self.order:
                raise ValueError(f"{self.name} has elements 0 to {self.order - 1}, got {g}")

    def mul(self, g: int, h: int) -> int:
        """Return the index of g h: first h, then g.

        Examples
        --------
        >>> DihedralGroup4().mul(4, 1) == DihedralGroup4().mul(3, 4)
        True
        """
        self._check(g, h)
        sign = -1 if g >= 4 else 1
        return (g + sign * h) % 4 + 4 * ((g // 4) ^ (h // 4))

    def inv(self, g: int) -> int:
        """Return the index of the inverse."""
        self._check(g)
        return g if g >= 4 else -g % 4

    def left_permutation(self, g: int) -> list[int]:
        """Return the indices g^-1 h for h = 0, 1, ...: what the left-regular representation of g gathers."""
        return [self.mul(self.inv(g), h) for h in self.elements]

    def act(self, g: int, image: Tensor) -> Tensor:
        """Transform an image, shape (..., H, W), by g.

        Examples
        --------
        >>> CyclicGroup4().act(1, torch.tensor([[1, 2], [3, 4]]))
        tensor([[2, 4],
                [1, 3]])
        """
        self._check(g)
        return torch.rot90(image.flip(-1) if g >= 4 else image, g % 4, (-2, -1))

    def act_features(self, g: int, features: Tensor) -> Tensor:
        """Transform features (B, C, |G|, H, W) by g: (L_g phi)(h) = T_g phi(g^-1 h).

        Every orientation is turned, and axis 2 is permuted from the left.
        """
        self._check_orientations(features)
        return self.act(g, features[:, :, self.left_permutation(g)])

    def _check_orientations(self, features: Tensor) -> None:
        if features.ndim != 5 or features.shape[2] != self.order:
            raise ValueError(
                f"features of {self.name} must have shape (B, C, {self.order}, H, W) with the orientations on axis 2, "
                f"got {tuple(features.shape)}; a lifting convolution makes them from an image (B, C, H, W)"
            )


class TrivialGroup(PlanarGroup):
    """The group of one element, C1, with which the layers are those of an ordinary Poincaré network."""

    name, order = "C1", 1

    def mul(self, g: int, h: int) -> int:
        """Return 0, the only element."""
        self._check(g, h)
        return 0


class CyclicGroup4(PlanarGroup):
    """Rotations by multiples of 90 degrees, C4.

    Examples
    --------
    >>> CyclicGroup4().mul(3, 2)
    1
    """

    name, order = "C4", 4


class DihedralGroup4(PlanarGroup):
    """Rotations by multiples of 90 degrees and reflections, D4, eight elements.

    Examples
    --------
    >>> DihedralGroup4().inv(5)
    5
    """

    name, order = "D4", 8


def lift_filters(group: PlanarGroup, weight: Tensor) -> Tensor:
    """Rotate filters (out, in, k, k) by every element: z_g = T_g z, shape (out, |G|, in, k, k)."""
    return torch.stack([group.act(g, weight) for g in group.elements], dim=1)


def group_filters(group: PlanarGroup, weight: Tensor) -> Tensor:
    """Rotate and permute filters (out, in, |G|, k, k): z_g[h] = T_g z[g^-1 h], shape (out, |G|, in, |G|, k, k)."""
    return torch.stack([group.act(g, weight[:, :, group.left_permutation(g)]) for g in group.elements], dim=1)
