"""Time and memory of the sphere residual against a copy and against add + rms_norm, eager and compiled.

All variants run interleaved on one thread; the least process time of the rounds counts. The figures are ratios, the
share of the copy's bandwidth that the unavoidable traffic would need (3 passes forward, 5 backward), and the memory
that forward + backward take beyond their inputs. The allocator is told to keep freed memory, as it does once a training
loop runs: with fresh pages for every tensor the page faults would be measured instead, mostly those of add + rms_norm,
which makes the most temporaries.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.residual_report import console, environment, print_table, save, save_figure
from benchmarks.timing import interleaved
from manifoldnorm.nn.functional import sphere_residual
from manifoldnorm.nn.sphere_rows import Turn
from manifoldnorm.nn.sphere_update import turn_plain

ROWS, DIM = 8192, 768
SMALL = ((1024, 64), (4096, 256))
BASELINE = "x + u, rms_norm"
DEFAULT = "p = 2 (default)"
NORMALIZED = "p = 2, update normalised"
PLAIN = "p = 2, plain operations"
# Passes over one (rows, dim) tensor that cannot be avoided: read x, u, write x'; read g, x, u, write dx, du.
FORWARD_PASSES, BACKWARD_PASSES = 3, 5

Residual = Callable[[Tensor, Tensor], Tensor]


def variants() -> dict[str, Residual]:
    # A function of its own for each: torch.compile counts its recompilations per function.
    return {
        BASELINE: lambda x, u: F.rms_norm(x + u, (x.shape[-1],)),
        "p = 1": lambda x, u: sphere_residual(x, u, 1.0),
        DEFAULT: lambda x, u: sphere_residual(x, u, 2.0),
        "p = 3": lambda x, u: sphere_residual(x, u, 3.0),
        "p = 4": lambda x, u: sphere_residual(x, u, 4.0),
        "p = inf": lambda x, u: sphere_residual(x, u, math.inf),
        NORMALIZED: lambda x, u: sphere_residual(x, u, 2.0, normalize_update=True),
        "p = inf, update normalised": lambda x, u: sphere_residual(x, u, math.inf, normalize_update=True),
        PLAIN: lambda x, u: turn_plain(x, u, 1.0, Turn(2.0, math.sqrt(x.shape[-1]), None)),
    }


def inputs(rows: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return points on the sphere, updates and an upstream gradient."""
    generator = torch.Generator().manual_seed(0)
    x, u, g = (torch.randn(rows, dim, generator=generator) for _ in range(3))
    x = F.rms_norm(x, (dim,))
    return x.requires_grad_(), (0.3 * u).requires_grad_(), g


def _step(function: Residual, x: Tensor, u: Tensor, g: Tensor) -> None:
    x.grad = u.grad = None
    function(x, u).backward(g)


def _forward(function: Residual, x: Tensor, u: Tensor) -> Tensor:
    with torch.no_grad():
        return function(x, u)


def keep_freed_memory() -> bool:
    """Tell glibc's allocator not to return memory to the system; False where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold, top_pad = -1, -3, -2
        return all(library.mallopt(key, 1 << 30) for key in (trim_threshold, mmap_threshold, top_pad))
    return False


def _resident(field: str) -> int:
    """Read VmRSS or VmHWM, the present and the peak resident memory, in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return 1024 * int(line.split()[1])


def peak_memory(name: str, compiled: bool) -> float:
    """Measure what forward + backward add to the resident memory, in units of one (rows, dim) tensor; Linux only."""
    torch.set_num_threads(1)
    # No compilation workers: they would outlive this process and be counted as leaked.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    function = variants()[name]
    if compiled:
        function = torch.compile(function, fullgraph=True, dynamic=False)
    x, u, g = inputs(ROWS, DIM)
    _step(function, x, u, g)
    x.grad = u.grad = None
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as reset_peak:
        reset_peak.write("5")
    before = _resident("VmRSS")
    _step(function, x, u, g)
    return (_resident("VmHWM") - before) / (4 * ROWS * DIM)


def memory_table() -> dict[str, dict[str, float]]:
    """Measure variants in a process each, eager and compiled; empty where the system does not tell."""
    if not os.path.exists("/proc/self/clear_refs"):
        return {}
    context = multiprocessing.get_context("spawn")
    result: dict[str, dict[str, float]] = {}
    for name in (BASELINE, DEFAULT, NORMALIZED, PLAIN):
        result[name] = {}
        for mode, compiled in (("eager", False), ("compiled", True)):
            if not (compiled and name == PLAIN):
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    result[name][mode] = pool.submit(peak_memory, name, compiled).result()
    return result


def timings(
    *, compiled: bool, rounds: int, names: list[str], rows: int = ROWS, dim: int = DIM
) -> dict[str, dict[str, float]]:
    """Time forward and forward + backward of the named variants, and a copy, in seconds."""
    x, u, g = inputs(rows, dim)
    target = torch.empty_like(g)
    functions: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(g)}
    for name in names:
        function = variants()[name]
        if compiled:
            function = torch.compile(function, fullgraph=True, dynamic=False)
        functions[f"forward {name}"] = partial(_forward, function, x, u)
        functions[f"both {name}"] = partial(_step, function, x, u, g)
    seconds = interleaved(functions, rounds=rounds)
    table = {"copy": {"both": seconds["copy"]}}
    for name in names:
        table[name] = {"forward": seconds[f"forward {name}"], "both": seconds[f"both {name}"]}
    return table


def _rows(table: dict[str, dict[str, float]]) -> list[list[str]]:
    one_pass = table["copy"]["both"] / 2
    baseline = table[BASELINE]
    lines = []
    for name, seconds in table.items():
        if name == "copy":
            continue
        roofline = (FORWARD_PASSES + BACKWARD_PASSES) * one_pass / seconds["both"]
        lines.append(
            [
                name,
                f"{1e3 * seconds['forward']:.2f}",
                f"{seconds['forward'] / baseline['forward']:.2f}",
                f"{1e3 * seconds['both']:.2f}",
                f"{seconds['both'] / baseline['both']:.2f}",
                f"{100 * roofline:.0f} %",
            ]
        )
    return lines


def _figure(result: dict[str, dict[str, dict[str, float]]]) -> None:
    with contextlib.suppress(ImportError):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(1, len(result), figsize=(11, 3.2), sharex=True)
        for axis, (mode, table) in zip(axes, result.items()):
            names = [name for name in table if name != "copy"]
            ratios = [table[name]["both"] / table[BASELINE]["both"] for name in names]
            axis.barh(names, ratios)
            axis.axvline(1.0, color="black", linewidth=0.8)
            axis.invert_yaxis()
            axis.set_title(mode)
            axis.set_xlabel("forward + backward / (x + u, rms_norm)")
        figure.tight_layout()
        save_figure(figure, "kernels")


def run(*, quick: bool) -> None:
    """Print and save the tables; `quick` takes fewer rounds and compiles two variants only."""
    memory = memory_table()
    reused = keep_freed_memory()
    rounds = 7 if quick else 25
    names = list(variants())
    result = {"eager": timings(compiled=False, rounds=rounds, names=names)}
    for rows, dim in SMALL:
        key = f"eager, ({rows}, {dim})"
        result[key] = timings(compiled=False, rounds=rounds, names=[BASELINE, DEFAULT, NORMALIZED], rows=rows, dim=dim)
    compiled_names = [BASELINE, DEFAULT] if quick else [name for name in names if name != PLAIN]
    result["compiled"] = timings(compiled=True, rounds=rounds, names=compiled_names)
    console.print(f"({ROWS}, {DIM}) float32, one thread, process time, minimum of {rounds} interleaved rounds")
    console.print(f"{environment()}, freed memory kept: {reused}")
    columns = ["", "forward ms", "ratio", "forward + backward ms", "ratio", "of the copy's bandwidth"]
    for mode, table in result.items():
        print_table(f"{mode}; a copy takes {1e3 * table['copy']['both']:.3f} ms", columns, _rows(table))
    print_table(
        "peak memory of forward + backward, in tensors of the input's size",
        ["", "eager", "compiled"],
        [[name, *(f"{row[m]:.2f}" if m in row else "" for m in ("eager", "compiled"))] for name, row in memory.items()],
    )
    save("kernels", {"rows": ROWS, "dim": DIM, "rounds": rounds, "seconds": result, "memory": memory})
    _figure({mode: result[mode] for mode in ("eager", "compiled")})
