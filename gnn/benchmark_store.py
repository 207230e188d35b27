"""Results on disk: one JSON line a run, appended in one write, read back with broken lines named and nothing lost."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from manifoldnorm.gnn.benchmark_plan import SCHEMA, Plan, RunConfig

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class RunResult:
    """What one run measured.

    Attributes
    ----------
    config : RunConfig
    metric, metric_large : float
        Mean of the task's metric over the test graphs, and over the larger test graphs.
    per_graph, per_graph_large : tuple of float
        The same for each graph.
    spearman_degree : float
        Mean rank correlation of score and degree over the test graphs.
    parameters : int
        Number of the policy's parameters.
    train_seconds, evaluate_seconds : float
        Processor time.
    curve : tuple of float
        Dismantling only: mean largest component, relative to n, at 101 evenly spaced fractions removed.
    versions : dict
        Of the packages that decide the numbers.
    """

    config: RunConfig
    metric: float
    metric_large: float
    per_graph: tuple[float, ...]
    per_graph_large: tuple[float, ...]
    spearman_degree: float
    parameters: int
    train_seconds: float
    evaluate_seconds: float
    curve: tuple[float, ...]
    versions: dict[str, str]

    def to_line(self) -> str:
        """Write the run as one line of JSON."""
        values = asdict(self)
        return json.dumps({"schema": SCHEMA, "config_hash": self.config.hash, **values}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "RunResult":
        """Read a line; raises ValueError if it is not a complete run of this schema."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not of schema {SCHEMA}")
        stored_hash = values.pop("config_hash", None)
        try:
            config = RunConfig.from_dict(values.pop("config"))
            for name in ("per_graph", "per_graph_large", "curve"):
                values[name] = tuple(float(value) for value in values[name])
            result = cls(config=config, **values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"incomplete run: {error}") from error
        if config.hash != stored_hash:
            raise ValueError("its configuration does not match its hash")
        return result


@dataclass(frozen=True)
class BrokenLine:
    """A line of a results file that holds no complete run."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}; that run counts as not done"


class ResultFile:
    """Append runs to a file, each with one write that reaches the disk before the next run is recorded.

    A line that was cut off (the process was killed while writing) is closed first, so that it spoils no later line.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def __enter__(self) -> "ResultFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def append(self, line: str) -> None:
        """Append one line, newline included."""
        data = line.encode()
        written = os.write(self._descriptor, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes could be written to {self.path}: is the disk full?")
        os.fsync(self._descriptor)


def result_files(folders: Iterable[Path]) -> list[Path]:
    """List the results files (one a shard) of the folders, in a fixed order."""
    return sorted(path for folder in folders for path in folder.glob("runs*.jsonl"))


def read_results(paths: Iterable[Path]) -> tuple[list[RunResult], list[BrokenLine]]:
    """Read all complete runs, each configuration once (the first), and name the broken lines.

    The runs come in an order that depends on the configurations alone, not on which run ended first or where.
    """
    found: dict[RunConfig, RunResult] = {}
    broken = []
    for path in paths:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    result = RunResult.from_line(raw.decode())
                except (ValueError, UnicodeDecodeError) as error:
                    reason = "cut off" if isinstance(error, json.JSONDecodeError) else str(error)
                    broken.append(BrokenLine(path, number, reason))
                    continue
                found.setdefault(result.config, result)
    return sorted(found.values(), key=lambda result: json.dumps(asdict(result.config))), broken


def write_manifest(folder: Path, plan: Plan, *, resume: bool) -> None:
    """Record what a folder is for, or check that it is for the same.

    Raises
    ------
    FileExistsError
        If the folder has a benchmark and ``resume`` is false.
    ValueError
        If the folder was begun with other runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MANIFEST
    content = {"schema": SCHEMA, **plan.to_dict()}
    if path.exists():
        if not resume:
            raise FileExistsError(
                f"{folder} already holds a benchmark: add --resume to go on with it, or give another --out"
            )
        before = json.loads(path.read_text())
        if before != content:
            differing = sorted(key for key in {*before, *content} if before.get(key) != content.get(key))
            raise ValueError(
                f"{folder} was begun with other settings ({', '.join(differing)} differ): use another --out"
            )
        return
    # Under a name of its own first: shards may start in one folder at the same time.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def read_manifest(folder: Path) -> Plan:
    """Read what a folder is for.

    Raises
    ------
    FileNotFoundError
        If the folder holds no benchmark.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no benchmark ({MANIFEST} is missing)")
    return Plan.from_dict(json.loads(path.read_text()))
