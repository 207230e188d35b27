"""Benchmarks: `python -m benchmarks.<name>` prints a table and writes JSON and PNG under runs/."""
