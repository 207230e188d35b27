"""What the benchmark runs: one frozen configuration a run, the presets, and the split into shards."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from manifoldnorm.gnn.benchmark_arms import ARMS

TASKS = ("independent_set", "influence", "dismantling")
BACKBONES = ("gat", "gcn", "sage", "gin")
FEATURES = ("blind", "degree", "structure", "constant")
OBJECTIVES = ("surrogate", "reinforce")
BLOCKS = ("post", "pre")
SCHEMA = 1


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of one run.

    Attributes
    ----------
    task, arm, backbone, features, objective, block : str
        The cell of the benchmark.
    seed : int
        Of the training graphs, the initial weights, the batches and the features.
    steps, train_graphs, batch_graphs, learning_rate : int, int, int, float
        Training.
    hidden_channels, num_layers, heads : int
        The network.
    test_graphs, test_graphs_large, feature_draws : int
        Test graphs of the training sizes, larger test graphs, and draws of random features that a test averages over.
    worlds : int
        Live-edge worlds that the influence is estimated with.
    """

    task: str
    arm: str
    backbone: str = "gat"
    features: str = "blind"
    objective: str = "surrogate"
    block: str = "post"
    seed: int = 0
    steps: int = 300
    train_graphs: int = 64
    batch_graphs: int = 16
    learning_rate: float = 3e-3
    hidden_channels: int = 32
    num_layers: int = 3
    heads: int = 4
    test_graphs: int = 60
    test_graphs_large: int = 24
    feature_draws: int = 4
    worlds: int = 2000

    def __post_init__(self) -> None:
        for name, allowed in (
            ("task", TASKS),
            ("arm", tuple(ARMS)),
            ("backbone", BACKBONES),
            ("features", FEATURES),
            ("objective", OBJECTIVES),
            ("block", BLOCKS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        if self.train_graphs % self.batch_graphs:
            raise ValueError(f"batch_graphs must divide train_graphs; got {self.batch_graphs} and {self.train_graphs}")

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the configuration, the run's identity."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def cell(self) -> tuple[str, ...]:
        """What a comparison holds fixed: task, features, backbone, block, objective."""
        return (self.task, self.features, self.backbone, self.block, self.objective)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "RunConfig":
        """Rebuild a configuration; raises ValueError for missing or unknown names."""
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"a configuration has the fields {sorted(known)}; differing: {sorted(known ^ set(values))}"
            )
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"{self.task} {self.features} {self.backbone}/{self.block}/{self.objective} {self.arm} "
            f"seed {self.seed} [{self.hash}]"
        )


@dataclass(frozen=True)
class Group:
    """A block of the plan: all combinations of its entries, for every seed."""

    arms: tuple[str, ...]
    features: tuple[str, ...] = ("blind",)
    backbones: tuple[str, ...] = ("gat",)
    blocks: tuple[str, ...] = ("post",)
    objectives: tuple[str, ...] = ("surrogate",)


@dataclass(frozen=True)
class Preset:
    """A size of the benchmark: its groups, its seeds, and the settings that they share."""

    groups: tuple[Group, ...]
    seeds: int
    settings: RunConfig


_BASE = RunConfig(task="independent_set", arm="layernorm")
_PAIR = ("layernorm", "postdeg")
_ALL_ARMS = tuple(ARMS)

PRESETS: dict[str, Preset] = {
    "smoke": Preset(
        groups=(Group(_PAIR, features=("blind", "degree")), Group(("graphwise", "permuted"))),
        seeds=3,
        settings=replace(
            _BASE,
            steps=150,
            test_graphs=24,
            test_graphs_large=8,
            feature_draws=2,
            worlds=1000,
        ),
    ),
    "small": Preset(
        groups=(
            Group(_PAIR, features=("blind", "degree")),
            Group(_ALL_ARMS),
            Group(_PAIR, backbones=("gcn", "sage", "gin")),
        ),
        seeds=5,
        settings=_BASE,
    ),
    "full": Preset(
        groups=(
            Group(_PAIR, features=("blind", "degree")),
            Group(_ALL_ARMS),
            Group(_PAIR, backbones=("gcn", "sage", "gin"), features=("blind", "degree")),
            Group(_ALL_ARMS, features=("degree",)),
            Group(_PAIR, features=("structure",)),
            Group((*_PAIR, "pre"), features=("constant",)),
            Group(_PAIR, blocks=("pre",)),
            Group(_PAIR, objectives=("reinforce",), features=("blind", "degree")),
        ),
        seeds=10,
        settings=_BASE,
    ),
}


@dataclass(frozen=True)
class Plan:
    """All runs of a benchmark: groups, for every seed and task, with common settings.

    Attributes
    ----------
    groups : tuple of Group
    settings : RunConfig
        Training and test settings; its cell and seed are replaced by each run's.
    seeds : tuple of int
    tasks : tuple of str
    """

    groups: tuple[Group, ...]
    settings: RunConfig
    seeds: tuple[int, ...]
    tasks: tuple[str, ...] = TASKS

    def configs(self) -> list[RunConfig]:
        """List the runs, each once, in the order in which they are done: group by group, seed by seed."""
        found: dict[RunConfig, None] = {}
        for group in self.groups:
            for seed, features, backbone, block, objective, task, arm in product(
                self.seeds, group.features, group.backbones, group.blocks, group.objectives, self.tasks, group.arms
            ):
                config = replace(
                    self.settings, task=task, arm=arm, backbone=backbone, features=features,
                    objective=objective, block=block, seed=seed,
                )  # fmt: skip
                found[config] = None
        return list(found)

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Rebuild a plan from `to_dict`."""
        return cls(
            groups=tuple(
                Group(**{name: tuple(entries) for name, entries in group.items()}) for group in values["groups"]
            ),
            settings=RunConfig.from_dict(values["settings"]),
            seeds=tuple(values["seeds"]),
            tasks=tuple(values["tasks"]),
        )


def preset_plan(preset: str, *, seeds: Sequence[int] | None = None, tasks: Sequence[str] = TASKS) -> Plan:
    """Give the plan of a preset.

    Parameters
    ----------
    preset : str
        One of ``PRESETS``.
    seeds : sequence of int, optional
        Instead of the preset's first seeds from 0.
    tasks : sequence of str
        Which tasks.

    Examples
    --------
    >>> from manifoldnorm.gnn.benchmark_plan import preset_plan
    >>> len(preset_plan("smoke").configs())
    54
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
    chosen = PRESETS[preset]
    return Plan(chosen.groups, chosen.settings, tuple(range(chosen.seeds) if seeds is None else seeds), tuple(tasks))


def parse_seeds(text: str) -> list[int]:
    """Read seeds as ``"0-9"``, ``"0,3,5"`` or ``"5"`` (a single seed).

    Examples
    --------
    >>> from manifoldnorm.gnn.benchmark_plan import parse_seeds
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"seeds must look like 0-9 or 0,3,5; got {text!r}")
        seeds.extend(range(int(first), int(last if dash else first) + 1))
    if len(set(seeds)) != len(seeds) or not seeds:
        raise ValueError(f"seeds must be distinct and at least one; got {text!r}")
    return seeds


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Read a shard as ``"1/4"`` (the first of four), or ``"auto"`` from a SLURM array or RANK and WORLD_SIZE.

    Examples
    --------
    >>> from manifoldnorm.gnn.benchmark_plan import parse_shard
    >>> parse_shard("2/4")
    (2, 4)
    >>> parse_shard("auto", {"RANK": "0", "WORLD_SIZE": "8"})
    (1, 8)
    """
    if text == "auto":
        if "SLURM_ARRAY_TASK_ID" in environment and "SLURM_ARRAY_TASK_COUNT" in environment:
            first = int(environment.get("SLURM_ARRAY_TASK_MIN", "0"))
            index = int(environment["SLURM_ARRAY_TASK_ID"]) - first + 1
            count = int(environment["SLURM_ARRAY_TASK_COUNT"])
        elif "RANK" in environment and "WORLD_SIZE" in environment:
            index, count = int(environment["RANK"]) + 1, int(environment["WORLD_SIZE"])
        else:
            raise ValueError("shard auto needs SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT, or RANK and WORLD_SIZE")
    else:
        first_part, slash, last_part = text.partition("/")
        if not (slash and first_part.isdigit() and last_part.isdigit()):
            raise ValueError(f"shard must look like 1/4 or be 'auto'; got {text!r}")
        index, count = int(first_part), int(last_part)
    if not 1 <= index <= count:
        raise ValueError(f"shard must be between 1/N and N/N; got {index}/{count}")
    return index, count


def shard(configs: Sequence[RunConfig], index: int, count: int) -> list[RunConfig]:
    """Take every ``count``-th run, beginning with number ``index`` (from 1)."""
    return list(configs[index - 1 :: count])
