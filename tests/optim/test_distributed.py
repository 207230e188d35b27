"""Two gloo processes: equal replicas (DDP), shards that step like the whole (FSDP2), states across world sizes."""

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from manifoldnorm.optim import (
    MACRO,
    MACROWithAdamW,
    constraint_error,
    macro_param_groups,
    project_to_constraint_,
    stationarity,
)

if not dist.is_available() or os.name != "posix":
    pytest.skip("needs torch.distributed on POSIX", allow_module_level=True)

MANIFOLDS = ["euclidean", "frobenius", "spectral", "oblique_rows", "oblique_cols", "stiefel", "grassmann"]
# Rows that two processes do not share evenly, and a matrix with fewer rows than processes have.
SHAPES = {"a": (33, 12), "b": (16, 8), "c": (7, 20), "d": (1, 6), "e": (8, 4, 3)}
STEPS = 4


Work = Callable[[int, Path], None]


def launch(folder: Path, *works: Work) -> None:
    """Run each `work(rank, folder)` in turn in two processes; whatever one of them raises fails the test."""
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=_worker, args=(works, rank, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        if process.is_alive():
            process.terminate()
    for rank in range(2):
        failure = folder / f"error{rank}"
        assert not failure.exists(), failure.read_text()
        assert (folder / f"done{rank}").exists(), "a process ended without a result"


def _worker(works: tuple[Work, ...], rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=60)
        )
        for work in works:
            work(rank, folder)
        dist.barrier()
        dist.destroy_process_group()
        (folder / f"done{rank}").touch()
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
    # Threads of the process group may abort an orderly exit after the results are written.
    os._exit(0)


def settings_of(manifold: str) -> dict[str, object]:
    return {"lr": 0.05, "manifold": manifold, "msign": "polar_express"}


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def single_process(manifold: str, **more: object) -> tuple[dict[str, nn.Parameter], MACRO]:
    parameters = {name: nn.Parameter(w) for name, w in weights().items()}
    optimizer = MACRO(parameters.items(), **settings_of(manifold), **more)
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            parameters[name].grad = gradient
        optimizer.step()
    return parameters, optimizer


def shard(tensor: Tensor) -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (2,)), [Shard(0)])


def shards_step_like_the_whole(rank: int, folder: Path) -> None:
    for manifold in MANIFOLDS:
        for more in ({}, {"scale": "angular"}, {"precondition": "row"}, {"precondition": "adam"}):
            if manifold == "euclidean" and more:
                continue
            reference, plain = single_process(manifold, **more)
            parameters = {name: nn.Parameter(shard(w)) for name, w in weights().items()}
            optimizer = MACRO(parameters.items(), **settings_of(manifold), **more)
            for step in range(STEPS):
                for name, gradient in gradients(step).items():
                    parameters[name].grad = shard(gradient)
                optimizer.step()
            for name, p in parameters.items():
                whole = p.full_tensor().detach()
                torch.testing.assert_close(
                    whole, reference[name].detach(), rtol=1e-4, atol=2e-5, msg=f"{manifold} {more}"
                )
                buffer = optimizer.state[p]["momentum_buffer"].full_tensor()
                torch.testing.assert_close(buffer, plain.state[reference[name]]["momentum_buffer"])
            if manifold != "euclidean":
                assert max(constraint_error(optimizer).values()) < 2e-6, manifold
            expected = stationarity(plain)
            assert stationarity(optimizer)["a"] == pytest.approx(expected["a"], rel=1e-3)


def not_finite_shards(rank: int, folder: Path) -> None:
    """A NaN in the rows of one process keeps every process' rows."""
    for manifold in MANIFOLDS:
        parameters = {name: nn.Parameter(shard(w)) for name, w in weights().items()}
        optimizer = MACRO(parameters.items(), **settings_of(manifold))
        before = {name: p.full_tensor().detach().clone() for name, p in parameters.items()}
        bad = gradients(0)
        bad["a"][-1, 0] = torch.nan
        for name, gradient in bad.items():
            parameters[name].grad = shard(gradient)
        optimizer.step()
        assert torch.equal(parameters["a"].full_tensor(), before["a"])
        assert not optimizer.state[parameters["a"]]["momentum_buffer"].full_tensor().any()
        assert not torch.equal(parameters["b"].full_tensor(), before["b"])


def missing_gradients(rank: int, folder: Path) -> None:
    """A gradient that is missing on one process does not leave the other waiting."""
    parameters = {name: nn.Parameter(shard(w)) for name, w in weights().items()}
    optimizer = MACRO(parameters.items(), **settings_of("stiefel"))
    for name, gradient in gradients(0).items():
        parameters[name].grad = shard(gradient)
    if rank == 1:
        parameters["b"].grad = None
    optimizer.step()
    project_to_constraint_(optimizer)
    assert max(constraint_error(optimizer).values()) < 1e-6


def tensor_parallel_is_refused(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    columns = distribute_tensor(torch.randn(4, 6), init_device_mesh("cpu", (2,)), [Shard(1)])
    with pytest.raises(ValueError, match=r"'w' has placements .*Shard\(0\)"):
        MACRO([("w", nn.Parameter(columns))])
    with pytest.raises(ValueError, match="clip_entries is not available for the sharded 'w'"):
        MACRO([("w", nn.Parameter(shard(torch.randn(4, 6))))], clip_entries=1.0)


def split_and_half_precision_shards(rank: int, folder: Path) -> None:
    fused = torch.randn(18, 6, generator=torch.Generator().manual_seed(1))
    for manifold in ("frobenius", "spectral"):
        options = {**settings_of(manifold), "split": [6, 8, 4]}
        p, q = nn.Parameter(fused.clone()), nn.Parameter(shard(fused))
        plain, sharded = MACRO([p], **options), MACRO([q], **options)
        half = nn.Parameter(shard(fused.bfloat16()))
        masters = MACRO([half], **options, master_weights=True)
        for step in range(3):
            gradient = torch.randn(18, 6, generator=torch.Generator().manual_seed(step))
            p.grad, q.grad, half.grad = gradient, shard(gradient), shard(gradient.bfloat16())
            for optimizer in (plain, sharded, masters):
                optimizer.step()
        torch.testing.assert_close(q.full_tensor().detach(), p.detach(), rtol=1e-4, atol=2e-5)
        assert constraint_error(masters)["0"] < 1e-6
        torch.testing.assert_close(half.full_tensor().detach().float(), p.detach(), rtol=0.05, atol=0.05)


def model_and_batch() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))
    return model, torch.randn(8, 6)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        (model(batch) - batch[:, :3]).square().mean().backward()
        optimizer.step()


def replicas_stay_equal(rank: int, folder: Path) -> None:
    for manifold in MANIFOLDS:
        model, batch = model_and_batch()
        alone, _ = model_and_batch()
        settings = {"macro": {**settings_of(manifold)}, "adamw": {"lr": 1e-3}}
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = MACROWithAdamW(macro_param_groups(model, **settings))
        train(wrapped, optimizer, batch.chunk(2)[rank], 10)
        train(alone, MACROWithAdamW(macro_param_groups(alone, **settings)), batch, 10)
        for p, q in zip(model.parameters(), alone.parameters()):
            others = [torch.empty_like(p) for _ in range(2)]
            dist.all_gather(others, p.detach())
            assert torch.equal(others[0], others[1]), manifold
            torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-3, atol=1e-5)


def fully_sharded_training_and_checkpoint(rank: int, folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for manifold in ("frobenius", "spectral", "stiefel"):
        model, batch = model_and_batch()
        alone, _ = model_and_batch()
        settings = {"macro": {**settings_of(manifold)}, "adamw": {"lr": 1e-3}}
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = MACROWithAdamW(macro_param_groups(model, **settings))
        train(model, optimizer, batch.chunk(2)[rank], 6)
        reference = MACROWithAdamW(macro_param_groups(alone, **settings))
        train(alone, reference, batch, 6)
        for p, q in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(p.full_tensor().detach(), q.detach(), rtol=1e-3, atol=2e-5, msg=manifold)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        saved = {
            "model": get_model_state_dict(model, options=options),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
        }
        if rank == 0:
            torch.save(saved, folder / f"{manifold}.pt")
        train(model, optimizer, batch.chunk(2)[rank], 3)
        after = get_model_state_dict(model, options=options)
        if rank == 0:
            torch.save(after, folder / f"{manifold}_after.pt")


def test_shards(tmp_path: Path) -> None:
    launch(
        tmp_path,
        shards_step_like_the_whole,
        not_finite_shards,
        missing_gradients,
        tensor_parallel_is_refused,
        split_and_half_precision_shards,
    )


def test_replicas(tmp_path: Path) -> None:
    launch(tmp_path, replicas_stay_equal)


def test_checkpoint_of_two_processes_resumes_on_one(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    launch(tmp_path, fully_sharded_training_and_checkpoint)
    for manifold in ("frobenius", "spectral", "stiefel"):
        saved = torch.load(tmp_path / f"{manifold}.pt", weights_only=True)
        model, batch = model_and_batch()
        settings = {"macro": {**settings_of(manifold)}, "adamw": {"lr": 1e-3}}
        optimizer = MACROWithAdamW(macro_param_groups(model, **settings))
        model.load_state_dict(saved["model"])
        set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=StateDictOptions(full_state_dict=True))
        assert max(constraint_error(optimizer).values()) < 2e-6
        train(model, optimizer, batch, 3)
        after = torch.load(tmp_path / f"{manifold}_after.pt", weights_only=True)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, after[name], rtol=1e-3, atol=2e-5, msg=f"{manifold} {name}")
