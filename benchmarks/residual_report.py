"""Tables, JSON and figures that the residual benchmarks share."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

FOLDER = Path("runs/residual")
console = Console(width=int(os.environ.get("COLUMNS", "130")))


def environment() -> dict[str, str]:
    """Versions and threads: what an absolute number of a report depends on."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "processors": str(os.cpu_count()),
        "load": load,
    }


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `result` with the environment to runs/residual/<name>.json."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1))
    console.print(f"written: {path}")
    return path


def save_figure(figure: Any, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    console.print(f"written: {path}")
