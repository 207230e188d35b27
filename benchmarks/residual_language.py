"""Residual schemes on real text: every scheme at several learning rates and seeds, with its spread."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.residual_parallel import train_in_parallel
from benchmarks.residual_report import console, environment, print_table, save, save_figure
from manifoldnorm.datasets.text import CharacterText
from manifoldnorm.demos.language import LanguageTraining, language_optimizer, validation_loss, validation_windows
from manifoldnorm.nn.transformer import ResidualName, Transformer, TransformerConfig

DIM, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 4, 64, 16
USABLE = 0.1  # nats above a scheme's own best that still count as a usable learning rate


@dataclass(frozen=True)
class Scheme:
    """A row of the table."""

    label: str
    residual: ResidualName | float
    normalize_embedding: bool = True
    normalize_update: bool = True

    def config(self, vocab_size: int, *, layers: int = LAYERS) -> TransformerConfig:
        """Return the configuration of a model of the benchmark's size."""
        return TransformerConfig(
            vocab_size,
            dim=DIM,
            layers=layers,
            heads=HEADS,
            context=CONTEXT,
            residual=self.residual,
            normalize_embedding=self.normalize_embedding,
            normalize_update=self.normalize_update,
        )


BASELINE = Scheme("pre-norm", "prenorm")
SCHEMES = (
    BASELINE,
    Scheme("pre-norm, raw embedding", "prenorm", normalize_embedding=False),
    Scheme("proj (p=1), normalised update", "proj"),
    Scheme("cayley (p=2), normalised update", "cayley"),
    Scheme("geonorm (p=inf), normalised update", "geonorm"),
    Scheme("proj (p=1), free update", "proj", normalize_update=False),
    Scheme("cayley (p=2), free update", "cayley", normalize_update=False),
    Scheme("p=4, free update", 4.0, normalize_update=False),
    Scheme("geonorm (p=inf), free update", "geonorm", normalize_update=False),
    Scheme("nGPT", "ngpt"),
)
QUICK_SCHEMES = (BASELINE, SCHEMES[2], SCHEMES[5], SCHEMES[9])
DEEP_SCHEMES = (BASELINE, SCHEMES[3], SCHEMES[5], SCHEMES[8])


@dataclass(frozen=True)
class Job:
    """One training run."""

    scheme: Scheme
    lr: float
    seed: int
    steps: int
    layers: int = LAYERS


@dataclass(frozen=True)
class Outcome:
    """What a run gave: losses in nats a character, the final stream's norm over sqrt(dim), processor seconds."""

    label: str
    lr: float
    seed: int
    layers: int
    validation: float
    training: float
    norm: float
    parameters: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """A scheme over all its runs at one depth."""

    label: str
    best_lr: float
    losses: tuple[float, ...]
    usable: tuple[float, ...]
    collapsed: int
    runs: int
    norm: float
    parameters: int
    seconds: float

    @property
    def mean(self) -> float:
        """Mean over the seeds at the best rate."""
        return statistics.fmean(self.losses)

    @property
    def deviation(self) -> float:
        """Standard deviation over the seeds at the best rate."""
        return statistics.stdev(self.losses) if len(self.losses) > 1 else math.nan


def train_one(job: Job, text: CharacterText) -> Outcome:
    training, validation = text.split()
    windows = validation_windows(validation, CONTEXT)
    torch.manual_seed(job.seed)
    model = Transformer(job.scheme.config(len(text.vocabulary), layers=job.layers))
    # nGPT is meant to be trained without warm-up.
    warm_up = 0.0 if job.scheme.residual == "ngpt" else 0.05
    optimizer = language_optimizer(model, lr=job.lr)
    started = time.process_time()
    loop = LanguageTraining(model, training, optimizer, job.steps, batch=BATCH, warm_up=warm_up, seed=job.seed)
    train_loss = loop.run()
    seconds = time.process_time() - started
    unit = 1.0 if job.scheme.residual == "ngpt" else DIM**0.5
    with torch.no_grad():
        norm = model.streams(windows[:64, :-1])[-1].norm(dim=-1).mean().item() / unit
    parameters = sum(p.numel() for p in model.parameters())
    loss = validation_loss(model, windows)
    return Outcome(
        job.scheme.label, job.lr, job.seed, job.layers, loss, train_loss, norm, parameters, round(seconds, 2)
    )


def frequency_entropy(text: CharacterText) -> float:
    """Loss of predicting characters by their training frequencies alone."""
    training, validation = text.split()
    frequencies: Tensor = torch.bincount(training, minlength=len(text.vocabulary)).double() + 1
    return -(frequencies / frequencies.sum()).log()[validation].mean().item()


def summarize(outcomes: Sequence[Outcome], collapse_above: float) -> list[Summary]:
    """Reduce each scheme to its best learning rate (by mean over seeds) and the range around it."""
    summaries = []
    for label in dict.fromkeys(outcome.label for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.label == label]
        by_lr = {lr: [o for o in own if o.lr == lr] for lr in sorted({o.lr for o in own})}
        # A NaN loss would compare as smallest; a diverged run is worst.
        means = {lr: statistics.fmean(_finite(o.validation) for o in runs) for lr, runs in by_lr.items()}
        best = min(means, key=means.__getitem__)
        summaries.append(
            Summary(
                label,
                best,
                tuple(o.validation for o in by_lr[best]),
                tuple(lr for lr, mean in means.items() if mean <= means[best] + USABLE),
                sum(_finite(o.validation) > collapse_above for o in own),
                len(own),
                statistics.fmean(o.norm for o in by_lr[best]),
                own[0].parameters,
                statistics.median(o.seconds for o in own),
            )
        )
    return summaries


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else 1e3


def verdict(summary: Summary, baseline: Summary) -> str:
    """Compare with the baseline, each at its best rate; the spread is both standard deviations in quadrature."""
    if summary.label == baseline.label:
        return "the baseline"
    difference = summary.mean - baseline.mean
    spread = math.hypot(summary.deviation, baseline.deviation)
    if math.isnan(spread):
        return f"{difference:+.3f}: one seed, no verdict"
    if abs(difference) <= spread:
        return f"{difference:+.3f}: within the spread ({spread:.3f})"
    return f"{difference:+.3f}: {'lower' if difference < 0 else 'higher'} (spread {spread:.3f})"


def show(title: str, summaries: Sequence[Summary]) -> None:
    baseline = summaries[0]
    rows = [
        (
            s.label,
            f"{s.mean:.3f} ± {s.deviation:.3f}",
            f"{s.best_lr:g}",
            f"{s.usable[0]:g}-{s.usable[-1]:g}" if len(s.usable) > 1 else f"{s.usable[0]:g}",
            f"{s.collapsed}/{s.runs}",
            f"{s.norm:.2f}",
            f"{s.seconds / baseline.seconds:.2f}",
            verdict(s, baseline),
        )
        for s in summaries
    ]
    columns = ("scheme", "loss", "best lr", "usable lr", "collapsed", "norm", "time", "against pre-norm")
    print_table(title, columns, rows)


def plot(outcomes: Sequence[Outcome], floor: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5))
    for label in dict.fromkeys(o.label for o in outcomes):
        rates = sorted({o.lr for o in outcomes if o.label == label})
        losses = [[_finite(o.validation) for o in outcomes if o.label == label and o.lr == lr] for lr in rates]
        mean = [statistics.fmean(values) for values in losses]
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in losses]
        axes.errorbar(rates, mean, yerr=spread, marker="o", capsize=2, label=label)
    axes.axhline(floor, color="gray", linestyle=":", label="character frequencies")
    axes.set(xscale="log", xlabel="learning rate", ylabel="validation loss (nats/character)")
    axes.legend(fontsize=7)
    save_figure(figure, "language")
    pyplot.close(figure)


def run(text: CharacterText, *, quick: bool, workers: int) -> None:
    """Sweep, print the tables, write runs/residual/language.json and language.png."""
    rates, seeds, steps = ((8e-3, 1.6e-2), (0, 1, 2), 60) if quick else ((4e-3, 8e-3, 1.6e-2, 3.2e-2), (0, 1, 2), 200)
    schemes = QUICK_SCHEMES if quick else SCHEMES
    jobs = [Job(scheme, lr, seed, steps) for seed, scheme, lr in itertools.product(seeds, schemes, rates)]
    deeper = itertools.product((0, 1), DEEP_SCHEMES, (8e-3, 1.6e-2))
    deep = [] if quick else [Job(scheme, lr, seed, steps, layers=8) for seed, scheme, lr in deeper]
    floor = frequency_entropy(text)
    console.print(f"{environment()}\ntext: {text.source}, {len(text.text)} characters, sha256 {text.sha256[:16]}")
    console.print(
        f"model: dim {DIM}, {LAYERS} layers, {HEADS} heads, context {CONTEXT}; {steps} steps of {BATCH} windows; "
        f"{len(jobs) + len(deep)} runs, {workers} at a time\n"
        f"character frequencies alone: {floor:.3f} nats; a run above {floor - 0.1:.3f} has collapsed"
    )
    started = time.perf_counter()
    outcomes = train_in_parallel(train_one, [*jobs, *deep], text, workers=workers)
    shallow = [o for o in outcomes if o.layers == LAYERS]
    show(f"validation loss (nats/character), mean ± sd of {len(seeds)} seeds", summarize(shallow, floor - 0.1))
    if deep:
        eight = [o for o in outcomes if o.layers != LAYERS]
        show("the same with 8 layers, 2 seeds", summarize(eight, floor - 0.1))
    console.print(
        "loss: at the scheme's own best rate of the grid. usable lr: grid points within "
        f"{USABLE} nats of that. norm: of the final stream over its sphere's radius (pre-norm: over sqrt(dim)). "
        "time: median processor time of a run over the baseline's."
    )
    console.print(f"wall time {time.perf_counter() - started:.0f} s")
    save(
        "language",
        {
            "text": {"source": text.source, "sha256": text.sha256, "characters": len(text.text)},
            "quick": quick,
            "frequency_entropy": floor,
            "outcomes": [asdict(outcome) for outcome in outcomes],
        },
    )
    plot(shallow, floor)
