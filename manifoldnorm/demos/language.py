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

from manifoldnorm.datasets.text import CharacterText, docstring_text, file_text
from manifoldnorm.nn.decoder import Decoder
from manifoldnorm.nn.transformer import ResidualName, Transformer, TransformerConfig
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
