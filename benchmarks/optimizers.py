"""Optimizers on weight manifolds: cost of a step, training, and what stays stable while training.

    python -m benchmarks.optimizers step [--rounds 15] [--threads 1 2]
    python -m benchmarks.optimizers train [--quick] [--seeds 3] [--steps 300] [--tasks mlp text] [--text FILE]
    python -m benchmarks.optimizers stability [--quick] [--seeds 3]

Step times are interleaved, the minimum of the rounds, and compared with `torch.optim.Muon` in the same process: process
time with one thread, wall time with more. Training goes on where it was interrupted. Writes JSON and PNG under
runs/optimizers/.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from benchmarks.optimizer_stability import follow
from benchmarks.optimizer_training import TASKS, run_campaign
from benchmarks.timing import grow_heap, interleaved, results_folder, versions, write_json
from manifoldnorm.datasets.text import CharacterText, docstring_text, file_text
from manifoldnorm.optim import MACRO

SHAPES = {
    "A": [(256, 256)] * 4 + [(1024, 256), (256, 1024)],
    "B": [(64, 64)] * 24,
    "C": ([(256, 256)] * 4 + [(1024, 256), (256, 1024)]) * 12,
}
# Ratio to torch.optim.Muon that a step should stay below, on shapes A and B.
TARGETS = {
    "MACRO euclidean": (1.05, 0.5),
    "MACRO frobenius": (1.15, 0.6),
    "MACRO oblique_rows": (1.15, 0.6),
    "MACRO spectral": (1.5, None),
    "MACRO stiefel": (2.2, None),
}


def contestants(shapes: list[tuple[int, int]]) -> dict[str, Callable[[], object]]:
    """Return a step of every optimizer on its own copy of the same weights and gradients."""
    import geoopt

    def parameters(make: Callable[[torch.Tensor], nn.Parameter] = nn.Parameter) -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        result = []
        for shape in shapes:
            parameter = make(torch.randn(shape, generator=generator) / math.sqrt(shape[1]))
            parameter.grad = torch.randn(shape, generator=generator)
            result.append(parameter)
        return result

    def on_sphere(weight: torch.Tensor) -> nn.Parameter:
        point: nn.Parameter = geoopt.ManifoldParameter(functional.normalize(weight, dim=-1), manifold=geoopt.Sphere())
        return point

    made: dict[str, torch.optim.Optimizer] = {"torch.optim.Muon": torch.optim.Muon(parameters(), lr=0.02)}
    for manifold in ("euclidean", "frobenius", "oblique_rows", "oblique_cols", "spectral", "stiefel", "grassmann"):
        made[f"MACRO {manifold}"] = MACRO(parameters(), manifold=manifold)
    made["MACRO spectral, schatten"] = MACRO(parameters(), manifold="spectral", sigma="schatten")
    made["MACRO frobenius, ambient"] = MACRO(parameters(), manifold="frobenius", direction="ambient")
    made["AdamW(foreach)"] = torch.optim.AdamW(parameters(), lr=1e-3, foreach=True)
    made["geoopt RiemannianAdam, Sphere"] = geoopt.optim.RiemannianAdam(parameters(on_sphere), lr=1e-3)
    return {name: optimizer.step for name, optimizer in made.items()}


def step(arguments: argparse.Namespace) -> None:
    console = Console(width=140)
    report: dict[str, object] = {"versions": versions("geoopt")}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        grow_heap()
        # Process time is what other programs disturb least, but counts the threads that wait.
        clock = time.process_time if threads == 1 else time.perf_counter
        for key in arguments.shapes:
            best = interleaved(contestants(SHAPES[key]), rounds=arguments.rounds, seconds=0.0, clock=clock)
            muon = best["torch.optim.Muon"]
            table = Table(title=f"one step, shapes {key}, {threads} thread(s), {torch.__version__}")
            for name in ("optimizer", "ms", "over Muon", "target"):
                table.add_column(name, justify="left" if name == "optimizer" else "right")
            for name, seconds in best.items():
                target = TARGETS.get(name, (None, None))["AB".find(key)] if key in "AB" else None
                table.add_row(
                    name, f"{seconds * 1e3:.2f}", f"{seconds / muon:.3f}", "" if target is None else f"{target}"
                )
            console.print(table)
            report[f"{key}, {threads} threads"] = {name: seconds / muon for name, seconds in best.items()}
    write_json(results_folder("optimizers") / "step.json", report)


def train(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    steps, mlp_steps, seeds = arguments.steps, arguments.mlp_steps, arguments.seeds
    if arguments.quick:
        steps, mlp_steps, seeds = 20, 40, 1
    run_campaign(_text(arguments), seeds=seeds, steps=steps, mlp_steps=mlp_steps, tasks=arguments.tasks)


def _text(arguments: argparse.Namespace) -> CharacterText:
    return docstring_text() if arguments.text is None else file_text(arguments.text)


def stability(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    steps, seeds = (20, 1) if arguments.quick else (arguments.steps, arguments.seeds)
    follow(_text(arguments), seeds=seeds, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for function in (step, train, stability):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        if function is step:
            command.add_argument("--rounds", type=int, default=15)
            command.add_argument("--threads", type=int, nargs="+", default=[1, 2])
            command.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["A", "B"])
        else:
            command.add_argument("--quick", action="store_true", help="a smoke test of a minute, not a measurement")
            command.add_argument("--seeds", type=int, default=3)
            command.add_argument("--steps", type=int, default=300 if function is train else 100)
            command.add_argument(
                "--text", metavar="FILE", help="train on this file instead of the installed docstrings"
            )
        if function is train:
            command.add_argument("--mlp-steps", type=int, default=400)
            command.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
