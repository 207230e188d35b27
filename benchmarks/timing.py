"""Interleaved timing, and the header that makes a table reproducible."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Clock = Callable[[], float]


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds: float = 0.02,
    clock: Clock = time.process_time,
) -> dict[str, float]:
    """Time functions in turn, so that all meet the same load, and return the least seconds per call of each.

    Parameters
    ----------
    functions : mapping of name to callable
        Called without arguments.
    rounds : int
        Turns; the minimum over them is returned.
    seconds : float
        A turn of one function repeats it for about this long.
    clock : callable
        Process time by default, which a busy machine disturbs least; wall time when threads matter.
    """
    repeats = {}
    for name, function in functions.items():
        function()
        start = clock()
        function()
        repeats[name] = max(1, int(seconds / max(clock() - start, 1e-7)))
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            for _ in range(repeats[name]):
                function()
            best[name] = min(best[name], (clock() - start) / repeats[name])
    return best


def grow_heap() -> None:
    """Do what a training step has done long before: make the C library keep what is freed.

    Freeing a block raises the size from which blocks are mapped anew, page by page, if the block is below 32 MiB.
    """
    torch.ones(1 << 22)


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, torch, and the named packages that are installed, with the thread count."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def results_folder(name: str) -> Path:
    """Return runs/<name>, made if missing."""
    folder = Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n")
