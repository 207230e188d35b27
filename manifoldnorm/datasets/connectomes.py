"""Functional connectomes of patients and controls: real correlation matrices that ship with geomstats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manifoldnorm.datasets.package_files import package_file

REGIONS = 28


@dataclass(frozen=True)
class Connectomes:
    """Correlation matrices of brain networks with the group of each person.

    Attributes
    ----------
    matrices : Tensor
        Shape (86, 28, 28), float64, positive definite with unit diagonal.
    patient : Tensor
        Shape (86,), int64: 1 for schizophrenic patients, 0 for controls.
    person : Tensor
        Shape (86,), int64, the identifiers of the people.
    """

    matrices: Tensor
    patient: Tensor
    person: Tensor

    def __len__(self) -> int:
        return len(self.matrices)


def connectomes() -> Connectomes:
    """Load 86 functional connectomes: correlations of the activity of 28 brain networks at rest.

    Returns
    -------
    Connectomes
        In the order of the file.

    Raises
    ------
    ModuleNotFoundError
        When geomstats, which carries the file, is not installed; it is not imported.
    ValueError
        When the file is not as described here.

    Notes
    -----
    The data are those of the MLSP 2014 schizophrenia classification challenge, as geomstats distributes them. The file
    holds the upper triangles row by row. These are the correlations themselves; geomstats' own loader returns half of
    them off the diagonal.

    Examples
    --------
    >>> data = connectomes()
    >>> data.matrices.shape, int(data.patient.sum())
    (torch.Size([86, 28, 28]), 40)
    """
    folder = ("datasets", "data", "connectomes")
    triangles = _read(*folder, "train_FNC.csv")
    labels = _read(*folder, "train_labels.csv")
    count = REGIONS * (REGIONS - 1) // 2
    if (
        triangles.shape[1:] != (count + 1,)
        or labels.shape[1:] != (2,)
        or not torch.equal(triangles[:, 0], labels[:, 0])
    ):
        raise ValueError(
            f"the connectome files have shapes {tuple(triangles.shape)} and {tuple(labels.shape)}, expected "
            f"{count + 1} and 2 columns with equal identifiers; the installed geomstats differs"
        )
    rows, columns = torch.triu_indices(REGIONS, REGIONS, 1)
    matrices = torch.eye(REGIONS, dtype=torch.float64).repeat(len(triangles), 1, 1)
    matrices[:, rows, columns] = triangles[:, 1:]
    matrices[:, columns, rows] = triangles[:, 1:]
    return Connectomes(matrices, labels[:, 1].long(), labels[:, 0].long())


def _read(*parts: str) -> Tensor:
    import csv

    with package_file("geomstats", *parts, extra="data").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return torch.tensor([[float(value) for value in row] for row in rows], dtype=torch.float64)
