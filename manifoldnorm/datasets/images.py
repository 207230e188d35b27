"""Labelled images as tensors: splits, random quarter turns, and a folder that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSplits:
    """Labelled images in three parts.

    Attributes
    ----------
    train, validation, test : pair of Tensor
        Images (N, channels, H, W) and labels (N,), int64.
    classes : tuple of str
        The names of the labels.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]


def split_images(
    images: Tensor,
    labels: Tensor,
    classes: tuple[str, ...],
    *,
    validation: float,
    test: float,
    generator: torch.Generator | None = None,
) -> ImageSplits:
    """Split at random, class by class, so that every part has the classes in equal shares.

    Parameters
    ----------
    images, labels : Tensor
        Shapes (N, channels, H, W) and (N,).
    classes : tuple of str
        Names of the labels.
    validation, test : float
        Shares of the two parts, positive, together below 1.
    generator : torch.Generator, optional
        For the permutation.

    Raises
    ------
    ValueError
        If a share is not positive, or a class has too few images for a part.

    Examples
    --------
    >>> x, y = torch.zeros(20, 1, 4, 4), torch.arange(20) % 2
    >>> splits = split_images(x, y, ("a", "b"), validation=0.2, test=0.3)
    >>> [len(part[1]) for part in (splits.train, splits.validation, splits.test)]
    [10, 4, 6]
    """
    if not (validation > 0 and test > 0 and validation + test < 1):
        raise ValueError(f"validation and test must be positive shares, together below 1; got {validation} and {test}")
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for label, name in enumerate(classes):
        members = torch.nonzero(labels == label).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first, second = round(test * len(members)), round((test + validation) * len(members))
        if not 0 < first < second < len(members):
            raise ValueError(f"class {name!r} has {len(members)} images, too few for three parts")
        for part, chosen in zip(parts, (members[second:], members[first:second], members[:first])):
            part.append(chosen)
    # Shuffled, so that a slice of a part is not one class.
    train, middle, last = (
        chosen[torch.randperm(len(chosen), generator=generator)] for chosen in (torch.cat(part) for part in parts)
    )
    return ImageSplits(
        (images[train], labels[train]), (images[middle], labels[middle]), (images[last], labels[last]), classes
    )


def turn_randomly(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Turn each image of a batch (N, channels, n, n) by a random multiple of 90 degrees, which is exact.

    Examples
    --------
    >>> turn_randomly(torch.ones(3, 1, 2, 2)).shape
    torch.Size([3, 1, 2, 2])
    """
    if images.ndim != 4 or images.shape[-1] != images.shape[-2]:
        raise ValueError(f"images must be square, shape (N, channels, n, n), got {tuple(images.shape)}")
    turns = torch.randint(4, (len(images),), generator=generator)
    stacked = torch.stack([torch.rot90(images, k, (-2, -1)) for k in range(4)])
    return stacked[turns, torch.arange(len(images))]


def image_folder(path: str | Path, *, side: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read images from a folder with one subfolder per class, cropped to a centred square and resized.

    Parameters
    ----------
    path : str or Path
        The folder; files that are not images are an error.
    side : int
        Height and width of the result.

    Returns
    -------
    images : Tensor
        Shape (N, 3, side, side), float32 in [0, 1].
    labels : Tensor
        Shape (N,), int64.
    classes : tuple of str
        Names of the subfolders in alphabetical order.

    Raises
    ------
    ValueError
        If the folder has no subfolders with files, or a file is not an image; the message names it.
    ModuleNotFoundError
        If Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("image_folder needs Pillow; run: pip install pillow", name="PIL") from error

    if side < 1:
        raise ValueError(f"side must be positive, got {side}")
    folders = sorted(p for p in Path(path).iterdir() if p.is_dir()) if Path(path).is_dir() else []
    files = [(label, file) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]
    if not files:
        raise ValueError(f"path must be a folder with one subfolder of images per class, got {path}")
    images = []
    for _, file in files:
        try:
            with Image.open(file) as image:
                rgb = image.convert("RGB")
        except UnidentifiedImageError as error:
            raise ValueError(f"{file} is not an image; remove it, or move it out of the class folders") from error
        edge = min(rgb.size)
        left, top = ((n - edge) // 2 for n in rgb.size)
        square = rgb.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + edge, top + edge))
        pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        images.append(pixels.view(side, side, 3).permute(2, 0, 1).float() / 255)
    return torch.stack(images), torch.tensor([label for label, _ in files]), tuple(f.name for f in folders)
