"""Distance, exponential and logarithm of the Siegel disk against geoopt and geomstats, and the Karcher mean's cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from manifoldnorm.manifolds.siegel import SiegelDisk

BATCH, SIZES = 512, (2, 4, 8)
# geomstats' logarithm loops over matrices; it is timed on this many and scaled.
LOGARITHMS = 32


def speed_ratios(console: Console, interleaved: Callable[..., dict[str, float]]) -> list[dict[str, Any]]:
    """Print and return our time over the other library's, minima of interleaved rounds."""
    os.environ.setdefault("GEOMSTATS_BACKEND", "numpy")
    import geoopt
    from geomstats.geometry.siegel import Siegel

    table = Table(title=f"time relative to the other library, batch {BATCH}, complex128, one thread")
    for column in ("n", "operation", "ours, ms", "theirs, ms", "ratio"):
        table.add_column(column, justify="right")
    rows = []
    for n in SIZES:
        ours, theirs, metric = SiegelDisk(scale=2.0), geoopt.BoundedDomain(), Siegel(n=n, symmetric=True).metric
        generator = torch.Generator().manual_seed(0)
        z, w = (ours.random(BATCH, n, n, generator=generator, dtype=torch.complex128) for _ in range(2))
        u = ours.logmap(w, z)
        pairs: list[tuple[str, Mapping[str, Callable[[], object]], float]] = [
            ("distance, forward + backward (geoopt)", {"ours": _step(ours, z, w), "theirs": _step(theirs, z, w)}, 1.0),
            (
                "exponential (geomstats)",
                {"ours": lambda: ours.expmap(w, u), "theirs": lambda: metric.exp(u.numpy(), w.numpy())},  # noqa: B023
                1.0,
            ),
            (
                "logarithm (geomstats)",
                {
                    "ours": lambda: ours.logmap(w, z),  # noqa: B023
                    "theirs": lambda: metric.log(z[:LOGARITHMS].numpy(), w[:LOGARITHMS].numpy()),  # noqa: B023
                },
                BATCH / LOGARITHMS,
            ),
            ("Karcher mean, to round-off", {"ours": lambda: ours.mean(z)}, 1.0),  # noqa: B023
        ]
        for name, functions, factor in pairs:
            best = interleaved(functions, rounds=15)
            other = best.get("theirs", float("nan")) * factor
            rows.append({"n": n, "operation": name, "ours": best["ours"], "theirs": other})
            table.add_row(
                str(n), name, f"{1e3 * best['ours']:.2f}", f"{1e3 * other:.2f}", f"{best['ours'] / other:.4f}"
            )
    console.print(table)
    return rows


def _step(manifold: Any, z: torch.Tensor, w: torch.Tensor) -> Callable[[], object]:
    a, b = z.clone().requires_grad_(), w.clone().requires_grad_()

    def run() -> None:
        a.grad = b.grad = None
        manifold.dist(a, b).sum().backward()

    return run
