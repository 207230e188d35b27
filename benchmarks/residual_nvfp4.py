"""4-bit products: the law of their signal-to-noise ratio, and the layers of trained models."""

from __future__ import annotations

import copy
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.residual_parallel import train_in_parallel
from benchmarks.residual_report import console, environment, print_table, save, save_figure
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.demos.language import LanguageTraining, language_optimizer, validation_loss, validation_windows
from manifoldnorm.nn.quantize import fake_quantize_linears_, mxfp4_fake_quantize, nvfp4_fake_quantize
from manifoldnorm.nn.transformer import ResidualName, Transformer, TransformerConfig

CONTEXT = 64
# Relative mean squared error of NVFP4 on Gaussian data, 20.4 dB.
RELATIVE_ERROR = 0.0090
MODELS: tuple[tuple[str, ResidualName, bool, float], ...] = (
    ("pre-norm", "prenorm", True, 8e-3),
    ("cayley, free update", "cayley", False, 8e-3),
    ("nGPT", "ngpt", True, 1.6e-2),
)


@dataclass(frozen=True)
class Job:
    """One model to train and quantise."""

    label: str
    residual: ResidualName
    normalize_update: bool
    lr: float
    dim: int
    seed: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """Losses in nats a character; per kind of layer the ratio in dB and the root mean square cosine."""

    label: str
    dim: int
    seed: int
    loss: float
    nvfp4: float
    nvfp4_weights_only: float
    mxfp4: float
    layers: dict[str, tuple[float, float]]


def decibels(signal: float, noise: float) -> float:
    return 10 * math.log10(signal / noise)


def law_row(dim: int, cosine: float | None, generator: torch.Generator, *, pairs: int = 4096) -> float:
    """Measured ratio of products of unit Gaussian vectors with a given cosine, or independent ones."""
    w = F.normalize(torch.randn(pairs, dim, generator=generator), dim=-1)
    x = F.normalize(torch.randn(pairs, dim, generator=generator), dim=-1)
    if cosine is not None:
        across = F.normalize(x - (x * w).sum(-1, keepdim=True) * w, dim=-1)
        x = cosine * w + math.sqrt(1 - cosine**2) * across
    exact = (w.double() * x.double()).sum(-1)
    rounded = (nvfp4_fake_quantize(w).double() * nvfp4_fake_quantize(x).double()).sum(-1)
    return decibels(exact.square().mean().item(), (rounded - exact).square().mean().item())


def show_law(dims: Sequence[int]) -> list[dict[str, float]]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for dim in dims:
        cosine = 0.05
        rows.append(
            {
                "dim": dim,
                "independent": law_row(dim, None, generator),
                "independent_law": decibels(1, 2 * RELATIVE_ERROR),
                "cosine_0.05": law_row(dim, cosine, generator),
                "cosine_0.05_law": decibels(cosine**2 * dim, 2 * RELATIVE_ERROR),
            }
        )
    print_table(
        "signal-to-noise ratio (dB) of NVFP4 products of unit vectors, against cosine^2 dim / (2 * 0.0090)",
        ("dim", "independent", "law", "cosine 0.05", "law"),
        [(str(int(r["dim"])), *(f"{value:.1f}" for key, value in r.items() if key != "dim")) for r in rows],
    )
    return rows


@torch.no_grad()
def layer_ratios(model: Transformer, windows: Tensor) -> dict[str, tuple[float, float]]:
    """Per kind of layer: ratio of its 4-bit product on the exact input, and the root mean square cosine."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

    def measure(kind: str, layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0]
        error = F.linear(nvfp4_fake_quantize(x), nvfp4_fake_quantize(layer.weight)) - output
        lengths = x.norm(dim=-1, keepdim=True) * layer.weight.norm(dim=-1)
        cosines = output / lengths.clamp(min=1e-20)
        for i, value in enumerate((output.square().sum(), error.square().sum(), cosines.square().sum())):
            sums[kind][i] += value.item()
        sums[kind][3] += output.numel()

    handles = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            kind = ".".join(name.split(".")[-2:]) if name.startswith("blocks") else "readout"
            handles.append(layer.register_forward_hook(functools.partial(measure, kind)))
    model(windows[:64, :-1])
    for handle in handles:
        handle.remove()
    return {
        kind: (decibels(signal, noise), math.sqrt(cosines / count))
        for kind, (signal, noise, cosines, count) in sums.items()
    }


def train_and_quantise(job: Job, text: CharacterText) -> Outcome:
    training, validation = text.split()
    windows = validation_windows(validation, CONTEXT)
    torch.manual_seed(job.seed)
    config = TransformerConfig(
        len(text.vocabulary),
        dim=job.dim,
        layers=4,
        heads=4,
        context=CONTEXT,
        residual=job.residual,
        normalize_update=job.normalize_update,
    )
    model = Transformer(config)
    warm_up = 0.0 if job.residual == "ngpt" else 0.05
    optimizer = language_optimizer(model, lr=job.lr)
    LanguageTraining(model, training, optimizer, job.steps, warm_up=warm_up, seed=job.seed).run()

    def rounded_loss(weight: Callable[[Tensor], Tensor] | None, activation: Callable[[Tensor], Tensor] | None) -> float:
        rounded = copy.deepcopy(model)
        fake_quantize_linears_(rounded, weight=weight, activation=activation)
        return validation_loss(rounded, windows)

    return Outcome(
        job.label,
        job.dim,
        job.seed,
        validation_loss(model, windows),
        rounded_loss(nvfp4_fake_quantize, nvfp4_fake_quantize),
        rounded_loss(nvfp4_fake_quantize, None),
        rounded_loss(mxfp4_fake_quantize, mxfp4_fake_quantize),
        layer_ratios(model, windows),
    )


def _mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def show_models(outcomes: Sequence[Outcome], seeds: int) -> None:
    groups: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.label, outcome.dim].append(outcome)
    losses = [
        (
            label,
            str(dim),
            _mean_and_spread([o.loss for o in own]),
            _mean_and_spread([o.nvfp4_weights_only - o.loss for o in own]),
            _mean_and_spread([o.nvfp4 - o.loss for o in own]),
            _mean_and_spread([o.mxfp4 - o.loss for o in own]),
        )
        for (label, dim), own in groups.items()
    ]
    columns = ("model", "dim", "loss", "NVFP4 weights", "NVFP4 weights + inputs", "MXFP4 weights + inputs")
    print_table(
        f"validation loss, and what rounding every linear layer adds (mean ± sd, seeds: {seeds})", columns, losses
    )
    kinds = list(outcomes[0].layers)
    ratios = []
    for (label, dim), own in groups.items():
        cells = []
        for kind in kinds:
            ratio = statistics.fmean(o.layers[kind][0] for o in own)
            cosine = statistics.fmean(o.layers[kind][1] for o in own)
            cells.append(f"{ratio:.1f} ({cosine:.2f})")
        ratios.append((label, str(dim), *cells))
    short = [kind.replace("attention.", "").replace("mlp.output", "mlp out").replace("mlp.", "") for kind in kinds]
    print_table("ratio in dB of each layer's NVFP4 product (root mean square cosine)", ("model", "dim", *short), ratios)


def plot(law: Sequence[dict[str, float]], outcomes: Sequence[Outcome]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    dims = [row["dim"] for row in law]
    for key, color in (("independent", "C0"), ("cosine_0.05", "C1")):
        left.plot(dims, [row[key] for row in law], "o", color=color, label=key.replace("_", " "))
        left.plot(dims, [row[f"{key}_law"] for row in law], "--", color=color)
    left.set(xscale="log", xlabel="dim", ylabel="signal-to-noise ratio (dB)", title="unit vectors (dashed: the law)")
    left.legend()
    for i, label in enumerate(dict.fromkeys(o.label for o in outcomes)):
        points = [(o.dim, o.layers[kind][0]) for o in outcomes if o.label == label for kind in o.layers]
        right.scatter([d * (1 + 0.06 * i) for d, _ in points], [r for _, r in points], s=12, label=label)
    right.set(xscale="log", xlabel="dim", title="layers of trained models")
    right.legend()
    save_figure(figure, "nvfp4")
    pyplot.close(figure)


def run(text: CharacterText, *, quick: bool, workers: int) -> None:
    """Measure, print the tables, write runs/residual/nvfp4.json and nvfp4.png."""
    console.print(f"{environment()}\ntext: {text.source}, {len(text.text)} characters, sha256 {text.sha256[:16]}")
    law = show_law((64, 256, 1024) if quick else (64, 256, 1024, 4096))
    dims, seeds, steps = ((64,), (0,), 40) if quick else ((32, 64, 128), (0, 1), 200)
    jobs = [Job(*model, dim, seed, steps) for seed in seeds for dim in dims for model in MODELS]
    outcomes: list[Any] = train_in_parallel(train_and_quantise, jobs, text, workers=workers)
    show_models(outcomes, len(seeds))
    console.print(
        "Models of 4 layers; the published comparison is at 1.2 billion parameters and more, out of reach here."
    )
    save("nvfp4", {"text_sha256": text.sha256, "law": law, "outcomes": [asdict(outcome) for outcome in outcomes]})
    plot(law, outcomes)
