"""Configurations have an identity; presets, seeds and shards are what they say."""

from dataclasses import replace

import pytest

from manifoldnorm.gnn.benchmark_plan import (
    PRESETS,
    TASKS,
    Plan,
    RunConfig,
    parse_seeds,
    parse_shard,
    preset_plan,
    shard,
)
from tests.gnn.tiny_runs import TINY


def test_the_hash_is_the_configuration() -> None:
    assert replace(TINY).hash == TINY.hash
    assert len({replace(TINY, seed=1).hash, replace(TINY, steps=3).hash, replace(TINY, arm="pre").hash, TINY.hash}) == 4


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets(preset: str) -> None:
    configs = preset_plan(preset).configs()
    assert len({config.hash for config in configs}) == len(configs)
    assert {config.task for config in configs} == set(TASKS)
    # With degree features is never left out.
    assert {"blind", "degree"} <= {config.features for config in configs}
    # Whatever is compared has its LayerNorm.
    base = {(config.cell, config.seed) for config in configs if config.arm == "layernorm"}
    assert all((config.cell, config.seed) in base for config in configs)


def test_full_has_ten_seeds_for_every_cell() -> None:
    configs = preset_plan("full").configs()
    cells = {(config.cell, config.arm) for config in configs}
    assert len(configs) == 10 * len(cells)


def test_a_plan_survives_json() -> None:
    plan = preset_plan("full", seeds=[3, 5], tasks=("influence",))
    assert Plan.from_dict(plan.to_dict()) == plan


def test_shards_are_a_partition() -> None:
    configs = preset_plan("smoke").configs()
    parts = [shard(configs, index, 4) for index in (1, 2, 3, 4)]
    assert sorted(config.hash for part in parts for config in part) == sorted(config.hash for config in configs)


def test_shards_from_the_environment() -> None:
    slurm = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "4"}
    assert parse_shard("auto", slurm) == (3, 4)
    assert parse_shard("auto", {"RANK": "3", "WORLD_SIZE": "4"}) == (4, 4)
    for text, environment in (("auto", {}), ("0/4", {}), ("5/4", {}), ("x", {}), ("1/", {})):
        with pytest.raises(ValueError, match="shard"):
            parse_shard(text, environment)


def test_seeds() -> None:
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]
    for text in ("", "a", "3-", "1,1", "5-2"):
        with pytest.raises(ValueError, match="seeds"):
            parse_seeds(text)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="task must be one of"):
        replace(TINY, task="colouring")
    with pytest.raises(ValueError, match="batch_graphs"):
        replace(TINY, batch_graphs=3)
    with pytest.raises(ValueError, match="preset"):
        preset_plan("huge")
    with pytest.raises(ValueError, match="differing"):
        RunConfig.from_dict({"task": "influence"})
