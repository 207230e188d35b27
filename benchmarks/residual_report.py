"""Tables, JSON and figures that the residual benchmarks share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import results_folder, versions, write_json

console = Console(width=int(os.environ.get("COLUMNS", "130")))


def environment() -> dict[str, str]:
    """Versions, threads, processors and load: what an absolute number of a report depends on."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {**versions(), "processors": str(os.cpu_count()), "load": load}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `result` with the environment to runs/residual/<name>.json."""
    path = results_folder("residual") / f"{name}.json"
    write_json(path, {"environment": environment(), **result})
    console.print(f"written: {path}")
    return path


def save_figure(figure: Any, name: str) -> None:
    path = results_folder("residual") / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    console.print(f"written: {path}")
