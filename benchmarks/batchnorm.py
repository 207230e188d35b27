"""Cost of a Riemannian batch norm, and with --accuracy what it is good for.

    python -m benchmarks.batchnorm [--rounds 30]

prints each geometry's forward + backward in training mode in units of one batched `torch.linalg.eigh` of the same
float64 batch, on one thread, all functions interleaved, the minimum of the rounds; rotations in units of one batched
singular value decomposition.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import interleaved, results_folder, versions, write_json
from manifoldnorm import manifolds
from manifoldnorm.linalg import rotation_from_vector
from manifoldnorm.manifolds import Manifold
from manifoldnorm.nn import RiemannianBatchNorm

SIZES = ((30, 20), (512, 8))

# Units of one eigh, at each of SIZES: the figures to stay below, and what the public LieBN code needs.
TARGETS = {
    "SPDAffineInvariant": ((5, 4), (13, 9)),
    "SPDLogEuclidean": ((3.3, 3), (6.5, 4.8)),
    "SPDLogCholesky": ((0.7, 0.4), (1.3, 0.9)),
    "SPDCholeskyRightInvariant": ((7, 5), (19, 12)),
    "CorrelationEuclideanCholesky": ((1.5, 0.7), (5.4, 1.5)),
    "CorrelationLogEuclideanCholesky": ((4, 2), (18.5, 4.2)),
    "CorrelationOffLog": ((12, 10), (21, 19)),
    "CorrelationLogScaled": ((7, 6), (20, 12)),
}


def step(manifold: Manifold, x: torch.Tensor, *, mean_steps: int | None = 1) -> Callable[[], None]:
    """Return a training step's forward and backward through one batch norm."""
    layer = RiemannianBatchNorm(manifold, x.shape[1:], mean_steps=mean_steps, dtype=x.dtype)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    leaf = x.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        layer.zero_grad()
        layer(leaf).backward(weight)

    return run


def cost(rounds: int) -> list[dict[str, object]]:
    """Measure all geometries at all sizes."""
    rows: list[dict[str, object]] = []
    for batch, n in SIZES:
        generator = torch.Generator().manual_seed(0)
        points = manifolds.SPDAffineInvariant().random(batch, n, n, generator=generator, dtype=torch.float64)
        functions: dict[str, Callable[[], object]] = {"eigh": lambda points=points: torch.linalg.eigh(points)}
        for name in TARGETS:
            geometry = getattr(manifolds, name, None)
            if geometry is not None:
                functions[name] = step(geometry(), geometry().projx(points) if "Correlation" in name else points)
        seconds = interleaved(functions, rounds=rounds)
        for name in functions:
            if name != "eigh":
                target, public = (pair[SIZES.index((batch, n))] for pair in TARGETS[name])
                rows.append({"geometry": name, "batch": batch, "n": n, "units": seconds[name] / seconds["eigh"],
                             "target": target, "public": public, "eigh_ms": 1e3 * seconds["eigh"]})  # fmt: skip
    return rows


def rotation_cost(rounds: int) -> list[dict[str, object]]:
    """Measure 512 rotations of three-space, their mean iterated to convergence, in units of one batched SVD."""
    rows: list[dict[str, object]] = []
    for dtype in (torch.float32, torch.float64):
        noise = 0.3 * torch.randn(512, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
        points = rotation_from_vector(noise)
        functions: dict[str, Callable[[], object]] = {"svd": lambda points=points: torch.linalg.svd(points)}
        for side in ("left", "right"):
            functions[side] = step(manifolds.Rotations(side), points, mean_steps=None)
        seconds = interleaved(functions, rounds=rounds)
        rows += [
            {"side": side, "dtype": str(dtype), "units": seconds[side] / seconds["svd"],
             "ms": 1e3 * seconds[side], "svd_ms": 1e3 * seconds["svd"]}
            for side in ("left", "right")
        ]  # fmt: skip
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--accuracy", action="store_true", help="accuracy with and without LieBN instead of the cost")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, for --accuracy")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.accuracy:
        from benchmarks.batchnorm_accuracy import run

        run(quick=arguments.quick)
        return
    rows = cost(arguments.rounds)
    table = Table("geometry", "batch", "n", "units of eigh", "target", "public code (its paper's repository)")
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for k, v in row.items() if k != "eigh_ms"))
    rotations = rotation_cost(arguments.rounds)
    rotation_table = Table("SO(3), batch 512", "dtype", "units of a batched SVD", "ms", "ms of the SVD")
    for row in rotations:
        rotation_table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    console = Console()
    console.print(table, rotation_table)
    console.print(str(versions()))
    document = {"versions": versions(), "rows": rows, "rotations": rotations}
    write_json(results_folder("batchnorm") / "cost.json", document)


if __name__ == "__main__":
    main()
