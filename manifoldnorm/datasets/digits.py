"""Handwritten digits, 8x8 pixels: real images that ship with scikit-learn."""

from __future__ import annotations

import csv
import gzip
from functools import cache

import torch
from torch import Tensor

from manifoldnorm.datasets.images import ImageSplits, split_images
from manifoldnorm.datasets.package_files import package_file


@cache
def _read() -> tuple[Tensor, Tensor]:
    path = package_file("sklearn", "datasets", "data", "digits.csv.gz", extra="data")
    with gzip.open(path, "rt", newline="") as file:
        rows = torch.tensor([[float(entry) for entry in row] for row in csv.reader(file)])
    return rows[:, :64].view(-1, 1, 8, 8) / 16, rows[:, 64].long()


def digits() -> tuple[Tensor, Tensor]:
    """Return the images, shape (1797, 1, 8, 8), float32 in [0, 1], and their labels (1797,).

    Raises
    ------
    ModuleNotFoundError
        If scikit-learn, whose file this is, is not installed.

    Notes
    -----
    The test part of the UCI "Optical Recognition of Handwritten Digits" data.

    Examples
    --------
    >>> images, labels = digits()
    >>> images.shape, labels.bincount().tolist()
    (torch.Size([1797, 1, 8, 8]), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    """
    images, labels = _read()
    return images.clone(), labels.clone()


def digit_splits(*, validation: float = 0.15, test: float = 0.3, seed: int = 0) -> ImageSplits:
    """Split the digits, upright, into training, validation and test images.

    Turn the test part with `manifoldnorm.datasets.images.turn_randomly` to see what a model makes of rotations. Some
    digits cannot be told apart then (6 and 9).

    Examples
    --------
    >>> [len(part[1]) for part in (digit_splits().train, digit_splits().validation, digit_splits().test)]
    [989, 269, 539]
    """
    images, labels = _read()
    names = tuple(str(n) for n in range(10))
    generator = torch.Generator().manual_seed(seed)
    return split_images(images, labels, names, validation=validation, test=test, generator=generator)
