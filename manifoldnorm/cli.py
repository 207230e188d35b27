"""The `manifoldnorm` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import manifoldnorm


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after the command's name; those of the process by default.
    """
    parser = argparse.ArgumentParser(prog="manifoldnorm", description=manifoldnorm.__doc__)
    parser.add_argument("--version", action="version", version=f"manifoldnorm {manifoldnorm.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{demo,select}")
    _add_demo(commands)
    words = list(sys.argv[1:] if arguments is None else arguments)
    _add_select(commands, wanted="select" in words[:1])
    parsed = parser.parse_args(words)
    try:
        status: int = parsed.handler(parsed)
    except (ValueError, OSError, ImportError) as error:
        print(f"manifoldnorm: {error}", file=sys.stderr)
        return 2
    return status


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="train on real EMG recordings with and without LieBN, and a language model")
    demo.add_argument("--part", choices=("emg", "language", "all"), default="all", help="what to run (default: all)")
    demo.add_argument("--seeds", type=_positive, default=3, help="seeds of the EMG part (default: 3)")
    demo.add_argument("--epochs", type=_positive, default=30, help="epochs of the EMG part (default: 30)")
    demo.add_argument("--text", help="a text file for the language part instead of installed packages' docstrings")
    demo.set_defaults(handler=_demo)


def _positive(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _demo(arguments: argparse.Namespace) -> int:
    try:
        from manifoldnorm.demos.show import show_emg, show_language
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error}; the demo needs: pip install "manifoldnorm[data,gnn]"') from error
    if arguments.part in ("emg", "all"):
        show_emg(seeds=arguments.seeds, epochs=arguments.epochs)
    if arguments.part in ("language", "all"):
        show_language(arguments.text)
    return 0


def _add_select(commands: Any, *, wanted: bool) -> None:
    """Add the node-selection benchmark; its packages are imported only when it is the command that was given."""
    if not wanted:
        commands.add_parser("select", help="graph node selection: run and report the benchmark, pick nodes of a graph")
        return
    from manifoldnorm.gnn.cli import add_select_parser

    add_select_parser(commands)


if __name__ == "__main__":
    sys.exit(main())
