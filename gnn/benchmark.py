"""Run the node-selection benchmark: a farm of independent runs that survives interruption and failing workers."""

import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

from manifoldnorm.gnn.benchmark_plan import RunConfig
from manifoldnorm.gnn.benchmark_run import run_one
from manifoldnorm.gnn.benchmark_store import (
    BrokenLine,
    ResultFile,
    RunResult,
    read_results,
    result_files,
)
from manifoldnorm.gnn.missing import require

__all__ = ["Failure", "FarmSummary", "run_farm"]

RESTARTS = 3
"""How often a pool whose worker died is started again without a single run done in between."""


@dataclass(frozen=True)
class Failure:
    """A run that raised, with its configuration."""

    config: RunConfig
    error: str
    trace: str

    def to_line(self) -> str:
        """Write the failure as one line of JSON."""
        return dumps({"config_hash": self.config.hash, **asdict(self)}) + "\n"


@dataclass
class FarmSummary:
    """What a call of `run_farm` did.

    Attributes
    ----------
    planned, found, done : int
        Runs asked for; of these, found on disk; done now.
    failures : list of Failure
    broken_lines : list of BrokenLine
    interrupted : bool
    lost_workers : int
        How often a worker process died (killed, out of memory).
    """

    planned: int
    found: int
    done: int = 0
    failures: list[Failure] = field(default_factory=list)
    broken_lines: list[BrokenLine] = field(default_factory=list)
    interrupted: bool = False
    lost_workers: int = 0

    @property
    def complete(self) -> bool:
        """Whether every planned run is on disk."""
        return self.found + self.done == self.planned


def run_farm(
    configs: Sequence[RunConfig],
    folder: Path,
    *,
    jobs: int = 1,
    file_name: str = "runs.jsonl",
    keep_policies: bool = False,
    dask_scheduler: str | None = None,
    on_result: Callable[[RunResult | Failure], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    worker: Callable[[RunConfig, Path | None], RunResult] = run_one,
) -> FarmSummary:
    """Do all runs that the folder does not hold yet, each on one thread, and append each result as it arrives.

    Parameters
    ----------
    configs : sequence of RunConfig
    folder : Path
        Where results are; all of its ``runs*.jsonl`` count as done.
    jobs : int, default 1
        Worker processes; 1 runs in this process.
    file_name : str, default "runs.jsonl"
        File to append to; shards that share a folder use one each.
    keep_policies : bool, default False
        Save trained policies in ``folder / "policies"``.
    dask_scheduler : str, optional
        Address of a Dask scheduler; the runs then go to its workers (``pip install "manifoldnorm[distributed]"``).
    on_result : callable, optional
        Called with each result or failure as it arrives.
    on_start : callable, optional
        Called once with the number of runs that are on disk already.
    worker : callable, default `run_one`
        What does a run.

    Returns
    -------
    FarmSummary
        Failures are in it and in ``failures.jsonl``; they stop no other run. Ctrl-C or SIGTERM ends the farm
        with ``interrupted`` set; every run that had ended is on disk.
    """
    results, broken = read_results(result_files([folder]))
    done = {result.config for result in results}
    waiting = dict.fromkeys(config for config in configs if config not in done)
    summary = FarmSummary(planned=len(set(configs)), found=len(set(configs)) - len(waiting), broken_lines=broken)
    policies = folder / "policies" if keep_policies else None
    if policies is not None:
        policies.mkdir(parents=True, exist_ok=True)
    if on_start is not None:
        on_start(summary.found)
    restarts = 0
    with (
        ResultFile(folder / file_name) as results_file,
        ResultFile(folder / "failures.jsonl") as failures_file,
        _Interrupts() as interrupts,
    ):
        while waiting:
            before = len(waiting)
            try:
                with closing(_outcomes(list(waiting), worker, policies, jobs, dask_scheduler)) as outcomes:
                    for outcome in outcomes:
                        # The line must be whole before an interrupt is answered.
                        with interrupts.held():
                            if isinstance(outcome, Failure):
                                failures_file.append(outcome.to_line())
                                summary.failures.append(outcome)
                            else:
                                results_file.append(outcome.to_line())
                                summary.done += 1
                            del waiting[outcome.config]
                        if on_result is not None:
                            on_result(outcome)
            except KeyboardInterrupt:
                summary.interrupted = True
                break
            except Exception as error:
                if not _worker_died(error):
                    raise
                summary.lost_workers += 1
                restarts = 0 if len(waiting) < before else restarts + 1
                if restarts >= RESTARTS:
                    suspects = [
                        Failure(config, f"a worker process died: {error}", traceback.format_exc())
                        for config in list(waiting)[: max(jobs, 1)]
                    ]
                    for failure in suspects:
                        del waiting[failure.config]
                        failures_file.append(failure.to_line())
                        if on_result is not None:
                            on_result(failure)
                    summary.failures += suspects
                    restarts = 0
    return summary


def _outcomes(
    configs: list[RunConfig],
    worker: Callable[[RunConfig, Path | None], RunResult],
    policies: Path | None,
    jobs: int,
    dask_scheduler: str | None,
) -> Generator[RunResult | Failure, None, None]:
    if jobs == 1 and dask_scheduler is None:
        yield from (_guarded(worker, config, policies, in_pool=False) for config in configs)
        return
    joblib = require("joblib")
    with _backend(joblib, dask_scheduler):
        pool = joblib.Parallel(
            n_jobs=-1 if dask_scheduler else jobs,
            return_as="generator_unordered",
            # One run at a time: a batch of runs would come back, and be recorded, only as a whole.
            batch_size=1,
            pre_dispatch="all" if dask_scheduler else 2 * jobs,
        )
        yield from pool(joblib.delayed(_guarded)(worker, config, policies, in_pool=True) for config in configs)


@contextmanager
def _backend(joblib: Any, dask_scheduler: str | None) -> Iterator[None]:
    if dask_scheduler is None:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            yield
        return
    try:
        from dask.distributed import Client
    except ModuleNotFoundError as error:
        raise ImportError('Dask is not installed: pip install "manifoldnorm[distributed]"') from error
    with Client(dask_scheduler), joblib.parallel_config(backend="dask"):
        yield


def _guarded(
    worker: Callable[[RunConfig, Path | None], RunResult],
    config: RunConfig,
    policies: Path | None,
    *,
    in_pool: bool,
) -> RunResult | Failure:
    if in_pool:
        _leave_interrupts_to_the_parent()
    try:
        return worker(config, policies)
    except Exception as error:
        return Failure(config, f"{type(error).__name__}: {error}", traceback.format_exc())


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches the whole process group; only the process that writes the results should answer it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Dask calls tasks outside the main thread, where signals cannot be set and do not arrive.
        return


class _Interrupts:
    """Turn SIGINT and SIGTERM (a batch system's warning) into KeyboardInterrupt, and delay it where asked to.

    Outside the main thread, where signals cannot be set and do not arrive, it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._held = False
        self._received = False

    def __enter__(self) -> "_Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A shell ignores SIGINT for jobs in the background; that stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._answer)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _answer(self, number: int, frame: object) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._received = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay interrupts until the block ends."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._received:
            raise KeyboardInterrupt


def _worker_died(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"BrokenProcessPool", "TerminatedWorkerError", "KilledWorker"})
