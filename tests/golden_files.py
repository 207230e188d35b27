"""Loading of golden numbers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"


@cache
def arrays(name: str) -> dict[str, Tensor]:
    """Load an npz file as tensors."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


@cache
def faults(name: str) -> dict[str, dict[str, Any]]:
    """Load fault cases by their id."""
    return {case["id"]: case for case in json.loads((FOLDER / f"faults_{name}.json").read_text())}


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return the largest difference over the largest entry of `b`."""
    return float((a.detach() - b).abs().max() / b.abs().max())
