"""Run the benchmarks that end within a few minutes, one after another; the others are named at the end."""

from __future__ import annotations

import subprocess
import sys

QUICK = (
    ["benchmarks.batchnorm", "--rounds", "20"],
    ["benchmarks.residual", "kernels"],
    ["benchmarks.optimizers", "step", "--rounds", "5"],
    ["benchmarks.complex_domains", "--tasks", "speed"],
    ["benchmarks.equivariant", "kernels"],
)
LONG = (
    "benchmarks.batchnorm --accuracy",
    "benchmarks.residual language|nvfp4|loop",
    "benchmarks.optimizers train|stability",
    "benchmarks.complex_domains",
    "benchmarks.equivariant accuracy",
)


def main() -> int:
    """Run them, each in a process of its own; return the number that failed."""
    failures = 0
    for command in QUICK:
        print(f"\n== python -m {' '.join(command)}", flush=True)
        failures += subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    print("\nLonger ones, by hand: " + "; ".join(f"python -m {name}" for name in LONG))
    print("and the graph benchmark: manifoldnorm select run --preset smoke")
    return failures


if __name__ == "__main__":
    sys.exit(main())
