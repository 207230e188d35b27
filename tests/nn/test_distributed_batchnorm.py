"""Two gloo processes with unequal, even empty, shares of a batch give what one process gives on all of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from manifoldnorm import SPDAffineInvariant, SPDLogCholesky
from manifoldnorm.nn import RiemannianBatchNorm, convert_sync_batchnorm
from manifoldnorm.nn.synchronize import ProcessSum
from tests.nn import distributed_worker
from tests.nn.test_batchnorm import points

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.nn.distributed_worker", str(rank), "2", str(folder)],
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors[-3000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("split", [(5, 3), (8, 0)])
@pytest.mark.parametrize("name", distributed_worker.geometries())
def test_two_processes_equal_one(
    results: list[dict[Any, dict[str, torch.Tensor]]], name: str, split: tuple[int, int]
) -> None:
    manifold, shape = distributed_worker.geometries()[name]
    x, w = distributed_worker.data(manifold, shape)
    single = distributed_worker.train(manifold, shape, x, w, False)
    ranks = [part[name, split] for part in results]
    for key in ("y", "x.grad"):
        torch.testing.assert_close(torch.cat([r[key] for r in ranks]), single[key], rtol=1e-10, atol=1e-10)
    for key in ("weight.grad", "bias.grad", "running_mean", "running_var"):
        for rank in ranks:
            torch.testing.assert_close(rank[key], single[key], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ranks[0]["running_mean"], ranks[1]["running_mean"], rtol=0, atol=0)


@pytest.mark.parametrize("split", [(5, 3), (8, 0)])
@pytest.mark.parametrize("kind", distributed_worker.DOMAINS)
def test_domains_that_not_every_process_sees(
    results: list[dict[Any, dict[str, torch.Tensor]]], kind: str, split: tuple[int, int]
) -> None:
    """Statistics of one domain must not be summed with those that another process has of another domain."""
    x, w = distributed_worker.data(SPDAffineInvariant(), (3, 3))
    single = distributed_worker.train_domains(x, w, list(distributed_worker.DOMAINS[kind]), False)
    ranks = [part[kind, split] for part in results]
    for key in ("y", "x.grad"):
        torch.testing.assert_close(torch.cat([r[key] for r in ranks]), single[key], rtol=1e-10, atol=1e-10)
    for key in ("running_mean", "running_var", "batches"):
        for rank in ranks:
            torch.testing.assert_close(rank[key], single[key], rtol=1e-10, atol=1e-10)


def test_a_single_point_in_all_processes_is_an_error_in_each(results: list[dict[Any, Any]]) -> None:
    for rank in results:
        assert "more than one point per channel, got one in all processes together" in rank["single"]


def test_a_group_that_was_never_initialised_gives_the_line_that_starts_it() -> None:
    layer = convert_sync_batchnorm(RiemannianBatchNorm(SPDLogCholesky(), (3, 3), dtype=torch.float64))
    with pytest.raises(RuntimeError, match="init_process_group"):
        layer(points(4))
    with pytest.raises(RuntimeError, match="init_process_group"):
        ProcessSum(None)(torch.ones(2))


def test_conversion_keeps_parameters_and_reaches_nested_layers() -> None:
    inner = RiemannianBatchNorm(SPDLogCholesky(), (3, 3))
    model = torch.nn.Sequential(torch.nn.Sequential(inner))
    before = list(map(id, model.parameters()))
    assert convert_sync_batchnorm(model) is model
    assert inner.synchronized
    assert before == list(map(id, model.parameters()))
