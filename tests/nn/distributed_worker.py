"""What each process of the distributed batch norm test does; run as a script with rank, world size and a folder."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import manifoldnorm
from manifoldnorm.manifolds import Manifold
from manifoldnorm.manifolds.complex_ball import ComplexBall
from manifoldnorm.manifolds.complex_points import ComplexPoints
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall, SiegelDisk
from manifoldnorm.nn import DomainBatchNorm, RiemannianBatchNorm, convert_sync_batchnorm


def geometries() -> dict[str, tuple[Manifold, tuple[int, ...]]]:
    """All Lie-group geometries and the complex ones, with an event shape."""
    names = {
        "SPDLogEuclidean": (3, 3), "SPDLogCholesky": (3, 3), "SPDAffineInvariant": (3, 3),
        "SPDCholeskyRightInvariant": (3, 3), "Rotations": (3, 3), "CorrelationEuclideanCholesky": (4, 4),
        "CorrelationLogEuclideanCholesky": (4, 4), "CorrelationOffLog": (4, 4), "CorrelationLogScaled": (4, 4),
    }  # fmt: skip
    groups = {
        name: (getattr(manifoldnorm, name)(), shape) for name, shape in names.items() if hasattr(manifoldnorm, name)
    }
    complex_ones: dict[str, tuple[Manifold, tuple[int, ...]]] = {
        "SiegelDisk": (SiegelDisk(), (2, 2)), "MatrixBall": (MatrixBall(), (2, 3)),
        "ComplexBall": (ComplexBall(), (3,)), "HPD": (HPD(), (2, 2)),
    }  # fmt: skip
    return {**groups, **complex_ones}


def dtype_of(manifold: Manifold) -> torch.dtype:
    """Double precision of the manifold's kind."""
    return torch.complex128 if isinstance(manifold, ComplexPoints) else torch.float64


def data(manifold: Manifold, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Eight points close enough together for a unique mean, and the weights of a loss."""
    generator = torch.Generator().manual_seed(3)
    base = manifold.random(*shape, generator=generator, dtype=dtype_of(manifold))
    u = 0.3 * manifold.random_tangent(base.expand(8, *shape), generator=generator)
    return manifold.expmap(base.expand(8, *shape), u), torch.randn(8, *shape, generator=generator, dtype=base.dtype)


def train(manifold: Manifold, shape: tuple[int, ...], x: Tensor, w: Tensor, synchronized: bool) -> dict[str, Tensor]:
    """One training step; gradients of parameters are summed over processes, as the loss is a sum."""
    layer = RiemannianBatchNorm(manifold, shape, dtype=x.dtype)
    with torch.no_grad():
        layer.weight.fill_(0.8)
    if synchronized:
        convert_sync_batchnorm(layer)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    (y * w).sum().real.backward()
    grads = [layer.weight.grad, layer.bias.grad]
    if synchronized:
        for grad in grads:
            dist.all_reduce(grad)
    return {"y": y.detach(), "x.grad": leaf.grad, "weight.grad": grads[0], "bias.grad": grads[1],
            "running_mean": layer.running_mean, "running_var": layer.running_var}  # fmt: skip


def train_domains(x: Tensor, w: Tensor, names: list[str], synchronized: bool) -> dict[str, Tensor]:
    """One training step with statistics per domain, of which a process may see only some."""
    layer = DomainBatchNorm(manifoldnorm.SPDAffineInvariant(), (3, 3), domains=["a", "b", "c"], dtype=x.dtype)
    if synchronized:
        convert_sync_batchnorm(layer)
    leaf = x.clone().requires_grad_()
    y = layer(leaf, names)
    (y * w).sum().backward()
    return {"y": y.detach(), "x.grad": leaf.grad, "running_mean": layer.running_mean, "running_var": layer.running_var,
            "batches": layer.num_batches_tracked}  # fmt: skip


# Of eight points in two processes; the last has a domain with one point in each.
DOMAINS = {"apart": "aaaaabbb", "overlapping": "aabbcccb", "one each": "aaaabaab"}


def main(rank: int, world: int, folder: Path, splits: list[list[int]]) -> None:
    """Join the group, run all geometries for each way to split the batch, write the results, and leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results: dict[Any, Any] = {}
    for name, (manifold, shape) in geometries().items():
        x, w = data(manifold, shape)
        for split in splits:
            start = sum(split[:rank])
            rows = slice(start, start + split[rank])
            results[name, tuple(split)] = train(manifold, shape, x[rows], w[rows], True)
            if name == "SPDAffineInvariant":
                for kind, domains in DOMAINS.items():
                    part = train_domains(x[rows], w[rows], list(domains)[rows], True)
                    results[kind, tuple(split)] = part
    try:
        x, w = data(manifoldnorm.SPDLogCholesky(), (3, 3))
        train(manifoldnorm.SPDLogCholesky(), (3, 3), x[: 1 - rank], w[: 1 - rank], True)
    except ValueError as error:
        results["single"] = str(error)
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # An interpreter that exits with a process group's threads behind it aborts now and then.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), [[5, 3], [8, 0]])
