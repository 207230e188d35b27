"""Training runs side by side, one thread each, with a journal."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from rich.progress import track

from benchmarks.residual_report import console
from benchmarks.timing import results_folder
from manifoldnorm.datasets.text import CharacterText

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class _Worker:
    """The training function and the text, sent to each process once."""

    train: Callable[[Any, CharacterText], Any]
    text: CharacterText

    @classmethod
    def start(cls, train: Callable[[Any, CharacterText], Any], text: CharacterText) -> None:
        torch.set_num_threads(1)
        cls.train, cls.text = staticmethod(train), text

    @classmethod
    def run(cls, job: Any) -> Any:
        return cls.train(job, cls.text)


def _outcomes(
    train: Callable[[Job, CharacterText], Outcome], jobs: Sequence[Job], text: CharacterText, workers: int
) -> Iterator[Outcome]:
    if workers == 1:
        yield from (train(job, text) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_Worker.start, initargs=(train, text)) as pool:
        yield from pool.map(_Worker.run, jobs)


def train_in_parallel(
    train: Callable[[Job, CharacterText], Outcome], jobs: Sequence[Job], text: CharacterText, *, workers: int
) -> list[Outcome]:
    """Run `train` on every job; outcomes (dataclasses) also go to a journal, for a sweep that is interrupted."""
    path = results_folder("residual") / f"{train.__module__.rpartition('.')[2]}.journal.jsonl"
    outcomes = []
    with path.open("w") as journal:
        for outcome in track(_outcomes(train, jobs, text, workers), "training", total=len(jobs), console=console):
            outcomes.append(outcome)
            journal.write(json.dumps(asdict(outcome)) + "\n")  # type: ignore[call-overload]
            journal.flush()
    return outcomes
