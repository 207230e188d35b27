"""Residual streams on a sphere: kernels, language models, 4-bit formats, looped blocks.

python -m benchmarks.residual {kernels,language,nvfp4,loop} [--quick] [--text FILE] [--workers N]
"""

from __future__ import annotations

import argparse
import sys

import torch

from manifoldnorm.datasets.text import CharacterText, docstring_text, file_text


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residual", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    kernels = commands.add_parser("kernels", help="time of the residual update against a copy and add + rms_norm")
    kernels.add_argument("--quick", action="store_true", help="fewer rounds")
    described = {
        "language": "residual schemes on text, several learning rates and seeds",
        "nvfp4": "signal-to-noise ratio of 4-bit products: the law, and layers of trained models",
        "loop": "looped blocks: norm, angle and loss over 1 to 16 loops",
    }
    for name, description in described.items():
        command = commands.add_parser(name, help=description)
        command.add_argument("--quick", action="store_true", help="a small version, minutes at most")
        command.add_argument("--text", metavar="FILE", help="a UTF-8 text file instead of docstrings")
        command.add_argument("--workers", type=int, default=1, help="training runs at a time, one thread each")
    options = parser.parse_args(arguments)
    if getattr(options, "workers", 1) < 1:
        parser.error(f"--workers: expected at least 1, got {options.workers}")
    return options


def _text(path: str | None) -> CharacterText:
    try:
        return docstring_text() if path is None else file_text(path)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"error: {error}")


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    torch.set_num_threads(1)
    if options.command == "kernels":
        from benchmarks import residual_kernels

        residual_kernels.run(quick=options.quick)
    elif options.command == "language":
        from benchmarks import residual_language

        residual_language.run(_text(options.text), quick=options.quick, workers=options.workers)
    elif options.command == "nvfp4":
        from benchmarks import residual_nvfp4

        residual_nvfp4.run(_text(options.text), quick=options.quick, workers=options.workers)
    else:
        from benchmarks import residual_loop

        residual_loop.run(_text(options.text), quick=options.quick, workers=options.workers)


if __name__ == "__main__":
    main()
