"""Equivariant Poincaré networks: accuracy on digits and trees, and the cost of the hyperbolic layers.

python -m benchmarks.equivariant {accuracy,trees,kernels} [--quick] [--seeds N] [--epochs N] [--hypll PATH]
"""

from __future__ import annotations

import argparse

import torch


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.equivariant", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    accuracy = commands.add_parser("accuracy", help="digits, upright and rotated; ten minutes")
    accuracy.add_argument("--quick", action="store_true", help="two models")
    accuracy.add_argument("--only", metavar="TEXT", help="the models whose name holds this text")
    accuracy.add_argument("--seeds", type=int, default=3, help="training runs for each model")
    accuracy.add_argument("--epochs", type=int, default=12)
    trees = commands.add_parser("trees", help="a hierarchy through a bottleneck, and embedded; minutes")
    trees.add_argument("--quick", action="store_true", help="two rows")
    trees.add_argument("--seeds", type=int, default=3, help="training runs for each row")
    kernels = commands.add_parser("kernels", help="time and memory of the layers against torch and HypLL")
    kernels.add_argument("--quick", action="store_true", help="fewer rounds")
    kernels.add_argument("--hypll", metavar="PATH", help="a folder that holds HypLL, when it is not installed")
    options = parser.parse_args(arguments)
    for name in ("seeds", "epochs"):
        if getattr(options, name, 1) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(options, name)}")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    torch.set_num_threads(1)
    if options.command == "accuracy":
        from benchmarks.equivariant_accuracy import run

        run(quick=options.quick, only=options.only, seeds=options.seeds, epochs=options.epochs)
    elif options.command == "trees":
        from benchmarks import equivariant_trees

        equivariant_trees.run(quick=options.quick, seeds=options.seeds)
    else:
        from benchmarks.equivariant_kernels import run_kernels

        run_kernels(quick=options.quick, hypll=options.hypll)


if __name__ == "__main__":
    main()
