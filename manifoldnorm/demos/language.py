"""Character-level language models: training, validation, and a demonstration that compares two residual schemes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from manifoldnorm.datasets.text import docstring_text, file_text
from manifoldnorm.nn.decoder import Decoder
from manifoldnorm.nn.transformer import Transformer, TransformerConfig
from manifoldnorm.nn.unit_norm import register_weight_normalization

Loss = Callable[[Decoder, Tensor], Tensor]


def next_token_loss(model: Decoder, windows: Tensor) -> Tensor:
    """Mean cross-entropy in nats of predicting windows[:, 1:] from windows[:, :-1]."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def language_optimizer(model: nn.Module, *, lr: float, weight_decay: float = 0.1) -> Optimizer:
    """AdamW as nanoGPT uses it; for models with unit-norm weights, Adam and normalisation after every step.

    Betas (0.9, 0.95). Matrices and embeddings decay, vectors and scalars do not. A model that holds layers with a
    `unit_norm_dim` (nGPT) gets no decay, which would only act on its scales.
    """
    if any(isinstance(getattr(module, "unit_norm_dim", None), int) for module in model.modules()):
        optimizer: Optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.95))
        register_weight_normalization(optimizer, model)
        return optimizer
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


@dataclass
class LanguageTraining:
    """Training of a language model on random windows of a text, with warm-up, a cosine decay to zero and clipping.

    Attributes
    ----------
    model : Decoder
        Trained in place; windows have its context + 1 tokens.
    tokens : Tensor
        int64, shape (n,), longer than the context.
    optimizer : Optimizer
        Its learning rates are the peaks of the schedule.
    steps, batch : int
        Number of steps and windows a step.
    warm_up : float
        Share of the steps over which the rate rises linearly; 0 for none, as nGPT wants.
    clip : float
        Largest norm of the gradient.
    seed : int
        Chooses the windows.
    loss : callable
        Of the model and windows (batch, context + 1).
    losses : list of float
        Training losses of the steps done.
    """

    model: Decoder
    tokens: Tensor
    optimizer: Optimizer
    steps: int
    batch: int = 16
    warm_up: float = 0.05
    clip: float = 1.0
    seed: int = 0
    loss: Loss = next_token_loss
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.model.context + 1:
            raise ValueError(
                f"tokens: expected more than context + 1 = {self.model.context + 1}, got {len(self.tokens)}; "
                "use a longer text or a shorter context"
            )
        self._generator = torch.Generator().manual_seed(self.seed)
        self._peaks = [group["lr"] for group in self.optimizer.param_groups]

    def run(self, steps: int | None = None) -> float:
        """Do `steps` steps (all that are left by default) and return the mean loss of the last tenth of those done."""
        left = self.steps - len(self.losses)
        for _ in range(left if steps is None else min(steps, left)):
            self._step()
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return statistics.fmean(last) if last else math.nan

    def _step(self) -> None:
        done = len(self.losses)
        for group, peak in zip(self.optimizer.param_groups, self._peaks):
            group["lr"] = peak * self._schedule(done)
        starts = torch.randint(len(self.tokens) - self.model.context, (self.batch,), generator=self._generator)
        windows = self.tokens[starts[:, None] + torch.arange(self.model.context + 1)]
        loss = self.loss(self.model, windows)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.losses.append(loss.item())

    def _schedule(self, done: int) -> float:
        warm_steps = round(self.warm_up * self.steps)
        if done < warm_steps:
            return (done + 1) / warm_steps
        return 0.5 * (1 + math.cos(math.pi * (done - warm_steps) / max(1, self.steps - warm_steps)))


def validation_windows(tokens: Tensor, context: int, *, windows: int = 256) -> Tensor:
    """Return `windows` windows of context + 1 tokens, evenly spread over the text: the same for every model."""
    if len(tokens) <= context:
        raise ValueError(f"tokens: expected more than the context of {context}, got {len(tokens)}; use a longer text")
    starts = torch.linspace(0, len(tokens) - context - 1, windows, dtype=torch.float64).long()
    return tokens[starts[:, None] + torch.arange(context + 1)]


@torch.no_grad()
def validation_loss(model: Decoder, windows: Tensor, *, loss: Loss = next_token_loss) -> float:
    """Mean loss in nats a character over `windows`."""
    training = model.training
    model.eval()
    total = sum(loss(model, part).item() * len(part) for part in windows.split(64))
    model.train(training)
    return total / len(windows)


@dataclass(frozen=True)
class LanguageComparison:
    """Result of `language_demo`: per scheme, validation losses by seed and the final stream's mean relative norm."""

    losses: dict[str, list[float]]
    norms: dict[str, float]
    steps: int

    @property
    def verdict(self) -> str:
        """One sentence that compares the second scheme with the first and says what the seeds allow."""
        baseline, other = self.losses
        pairs = list(zip(self.losses[baseline], self.losses[other]))
        differences = [b - a for a, b in pairs]
        mean = statistics.fmean(differences)
        if len(differences) < 2:
            return f"{other} - {baseline}: {mean:+.3f} nats a character with one seed, which shows no difference"
        spread = statistics.stdev(differences)
        size = f"{other} - {baseline}: {mean:+.3f} nats a character over {len(pairs)} seeds, spread {spread:.3f}"
        if abs(mean) <= spread:
            return f"{size}: no difference"
        return f"{size}: {'lower' if mean < 0 else 'higher'} here, at this size, rate and number of steps"


BASELINE = "pre-norm"
SPHERE = "sphere (Cayley)"


def _demo_model(scheme: str, vocab_size: int, seed: int) -> Transformer:
    sphere = scheme == SPHERE
    config = TransformerConfig(
        vocab_size,
        dim=64,
        layers=4,
        heads=4,
        context=64,
        residual="cayley" if sphere else "prenorm",
        normalize_update=not sphere,
    )
    torch.manual_seed(seed)
    return Transformer(config)


def _seconds_a_step(tokens: Tensor, vocab_size: int, make_optimizer: Callable[[nn.Module], Optimizer]) -> float:
    """Time of one training step of each scheme together, on throw-away models."""
    total = 0.0
    for scheme in (BASELINE, SPHERE):
        model = _demo_model(scheme, vocab_size, 0)
        training = LanguageTraining(model, tokens, make_optimizer(model), 8)
        training.run(3)
        started = time.perf_counter()
        training.run(5)
        total += (time.perf_counter() - started) / 5
    return total


def language_demo(
    console_print: Callable[[str], object],
    seconds: float = 75.0,
    *,
    make_optimizer: Callable[[nn.Module], Optimizer] | None = None,
    text: str | Path | None = None,
) -> LanguageComparison:
    """Train a small transformer with a pre-norm and one with a spherical stream on the same text, and compare them.

    Parameters
    ----------
    console_print : callable
        Takes a line of the report; `print` for instance.
    seconds : float
        Time to spend. The number of steps follows from the speed of the machine; losses are comparable within a run.
    make_optimizer : callable, optional
        Makes the optimizer of a model; default AdamW at the rate where both schemes are close to their best.
    text : path, optional
        A UTF-8 text file instead of the docstrings of the standard library.

    Returns
    -------
    LanguageComparison

    Raises
    ------
    FileNotFoundError, ValueError
        The text file is missing, not UTF-8 or shorter than 10,000 characters; `seconds` is not positive.

    Examples
    --------
    >>> result = language_demo(lambda line: None, seconds=1.0)
    >>> sorted(result.losses)
    ['pre-norm', 'sphere (Cayley)']
    """
    if not seconds > 0:
        raise ValueError(f"seconds: expected a positive number, got {seconds}")
    make_optimizer = make_optimizer or (lambda model: language_optimizer(model, lr=8e-3))
    corpus = docstring_text() if text is None else file_text(text)
    training_tokens, validation_tokens = corpus.split()
    vocab_size = len(corpus.vocabulary)
    windows = validation_windows(validation_tokens, 64)
    step_time = _seconds_a_step(training_tokens, vocab_size, make_optimizer)
    affordable = int(0.85 * seconds / step_time)
    seeds = 3 if affordable >= 300 else 1
    steps = max(10, min(200, affordable // seeds))
    console_print(f"text: {corpus.source}, {len(corpus.text):,} characters, {vocab_size} different")
    console_print(f"two transformers (4 layers, width 64), {steps} steps, {seeds} seed{'s' if seeds > 1 else ''}:")
    losses: dict[str, list[float]] = {BASELINE: [], SPHERE: []}
    norms = dict.fromkeys(losses, 0.0)
    sample = ""
    for seed in range(seeds):
        for scheme in losses:
            model = _demo_model(scheme, vocab_size, seed)
            LanguageTraining(model, training_tokens, make_optimizer(model), steps, seed=seed).run()
            losses[scheme].append(validation_loss(model, windows))
            with torch.no_grad():
                stream = model.streams(windows[:64, :-1])[-1]
            norms[scheme] += stream.norm(dim=-1).mean().item() / stream.shape[-1] ** 0.5 / seeds
            console_print(f"  {scheme}, seed {seed}: validation loss {losses[scheme][-1]:.3f} nats a character")
            generator = torch.Generator().manual_seed(seed)
            sample = corpus.decode(model.generate(windows[:1, :16], 48, temperature=0.7, generator=generator)[0])
    result = LanguageComparison(losses, norms, steps)
    for scheme, values in losses.items():
        console_print(
            f"{scheme}: mean loss {statistics.fmean(values):.3f}, norm of the final stream "
            f"{norms[scheme]:.2f} x sqrt(width)"
        )
    console_print(result.verdict)
    console_print(f"a sample of the last model, after its first 16 characters: {sample!r}")
    return result
