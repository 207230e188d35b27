"""Steps of parameters that are sharded by rows over processes (FSDP2, or any DTensor with placement Shard(0)).

The polar factor needs the whole matrix, so each matrix is gathered to an owner, which makes its step and scatters the
rows back; a round of as many matrices as processes keeps every process busy. On the Frobenius sphere and for oblique
rows projection and retraction are local but for a few sums, and half as much is sent. Replicated parameters (DDP) need
nothing from this module: equal gradients give equal steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manifoldnorm.manifolds.matrices import MatrixManifold
from manifoldnorm.manifolds.matrix_spheres import FrobeniusSphere, Oblique
from manifoldnorm.optim.blocks import Block, blocks_of, matrix_shape
from manifoldnorm.optim.constraints import build
from manifoldnorm.optim.direction import StepRule, above_rounding, constrained_step, muon_step_, post_projected, select

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without importing what defines them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def check_placement(parameter: Any, name: str) -> None:
    """Raise ValueError unless a DTensor is sharded by rows along at most one mesh dimension."""
    from torch.distributed.tensor import Replicate, Shard

    placements = parameter.placements
    by_rows = [type(p) is Shard and p.dim == 0 for p in placements]
    if sum(by_rows) > 1 or not all(rows or isinstance(p, Replicate) for rows, p in zip(by_rows, placements)):
        raise ValueError(
            f"{name} has placements {tuple(placements)}; MACRO steps parameters that are sharded by rows along one "
            "mesh dimension, Shard(0), and replicated along the others (FSDP2, HSDP), not tensor-parallel ones"
        )


def whole(tensor: Any) -> Tensor:
    """Return the whole tensor on every process."""
    detached = tensor.detach()
    return detached.full_tensor() if is_sharded(tensor) else detached


def assign_whole_(target: Any, value: Tensor) -> None:
    """Write a tensor known on every process into `target`, each process its own rows."""
    if not is_sharded(target):
        target.detach().copy_(value)
        return
    group, rank, world = _rows_group(target)
    local = target.detach().to_local()
    if group is not None:
        value = value[rank * _rows_each(target, world) :][: local.shape[0]]
    local.copy_(value)
    torch.autograd.graph.increment_version(target)


def _rows_group(parameter: Any) -> tuple[ProcessGroup | None, int, int]:
    """Return the process group over which rows are sharded with this process' rank and the group's size."""
    from torch.distributed.tensor import Shard

    for dimension, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            mesh = parameter.device_mesh
            return mesh.get_group(dimension), mesh.get_local_rank(dimension), mesh.size(dimension)
    return None, 0, 1


def _rows_each(parameter: Tensor, world: int) -> int:
    return math.ceil(parameter.shape[0] / world)


def step_sharded(
    parameters: Sequence[Any], states: Any, group: dict[str, Any], rule: StepRule, names: dict[Tensor, str]
) -> None:
    """Step the DTensor parameters of a group; every process must pass the same ones in the same order."""
    from manifoldnorm.optim.momentum import average_

    shards = [_Shard(parameter, states[parameter], group, names[parameter]) for parameter in parameters]
    for shard in shards:
        shard.agree_on_finite()
    for shard in shards:
        block = Block(shard.local, 0, shard.local.shape[0], 0)
        equilibration = group["precondition"] if group["precondition"] != "adam" else None
        local_group = {**group, "precondition": None} if equilibration else group
        momentum = average_(shard.gradient.unsqueeze(0), shard.keep, [block], [shard.local_state()], local_group)
        shard.momentum = momentum.squeeze(0)
    by_world: dict[tuple[int, bool], list[_Shard]] = {}
    for shard in shards:
        by_world.setdefault((id(shard.process_group), shard.is_local_manifold(rule)), []).append(shard)
    for (_, local_manifold), members in by_world.items():
        world = members[0].world
        for first in range(0, len(members), world):
            chunk = members[first : first + world]
            if local_manifold:
                _step_locally(chunk, rule)
            else:
                _step_at_owners(chunk, rule)
    for shard in shards:
        torch.autograd.graph.increment_version(shard.parameter)


class _Shard:
    """The rows of one parameter that this process holds, with the collectives that involve the others."""

    def __init__(self, parameter: Any, state: dict[str, Any], group: dict[str, Any], name: str) -> None:
        self.parameter, self.state, self.group, self.name = parameter, state, group, name
        self.process_group, self.rank, self.world = _rows_group(parameter)
        self.target = state.get("master", parameter).detach().to_local()
        local = parameter.detach().to_local()
        self.local = local.view(local.shape[0], matrix_shape(parameter)[1])
        gradient = parameter.grad
        # A process must not skip a collective, so a missing gradient counts as zero.
        raw = torch.zeros_like(local) if gradient is None else gradient.detach().to_local()
        self.gradient = raw.reshape(self.local.shape)
        self.wide = torch.promote_types(parameter.dtype, torch.float32)
        self.momentum = self.gradient
        self.keep = torch.ones(1, 1, 1, dtype=self.wide, device=self.local.device)

    def local_state(self) -> dict[str, Any]:
        """Return the views of this process' rows of the state that is sharded."""
        keys = ("momentum_buffer", "second_moment")
        state = {k: self.state[k].to_local().view(self.local.shape) for k in keys if k in self.state}
        return {**state, "step": self.state["step"][:1]} if "step" in self.state else state

    def agree_on_finite(self) -> None:
        """Find out whether the gradient is finite on every process."""
        from manifoldnorm.optim.momentum import finite

        self.keep = finite(self.gradient.unsqueeze(0))
        if self.process_group is not None:
            torch.distributed.all_reduce(self.keep, torch.distributed.ReduceOp.MIN, group=self.process_group)

    def is_local_manifold(self, rule: StepRule) -> bool:
        """Tell whether projection and retraction need sums at most."""
        simple = self.group["split"] is None and rule.scale != "angular" and rule.direction != "dual"
        equilibrated = self.group["precondition"] not in (None, "adam")
        return simple and not equilibrated and self.name in ("frobenius", "oblique_rows")

    def manifold(self) -> MatrixManifold:
        """Return the manifold of one matrix whose rows are spread over the processes."""
        radius = self.state["radius"][:1]
        if self.name == "oblique_rows":
            return _ShardedOblique(radius, self.parameter.shape[0])
        return _ShardedFrobeniusSphere(radius, self.parameter.shape[0], self.process_group)

    def weights(self) -> Tensor:
        """Return this process' rows in the precision of the step."""
        return self.target.reshape(self.local.shape).to(self.wide)

    def gather(self, rows: Tensor, owner: int) -> Tensor | None:
        """Send rows of shape (..., rows, n) to the owner, which gets the whole, (..., m, n)."""
        if self.process_group is None:
            return rows
        each = _rows_each(self.parameter, self.world)
        padded = torch.nn.functional.pad(rows, (0, 0, 0, each - rows.shape[-2])).contiguous()
        received = [torch.empty_like(padded) for _ in range(self.world)] if self.rank == owner else None
        to = torch.distributed.get_global_rank(self.process_group, owner)
        torch.distributed.gather(padded, received, dst=to, group=self.process_group)
        return None if received is None else torch.cat(received, -2)[..., : self.parameter.shape[0], :]

    def scatter(self, matrix: Tensor | None, owner: int) -> Tensor:
        """Hand out the rows of the owner's matrix of shape (m, n)."""
        if self.process_group is None:
            assert matrix is not None
            return matrix
        each = _rows_each(self.parameter, self.world)
        received = torch.empty(each, self.local.shape[1], dtype=self.wide, device=self.local.device)
        pieces = None
        if matrix is not None:
            padding = each * self.world - matrix.shape[0]
            padded = torch.nn.functional.pad(matrix.to(self.wide), (0, 0, 0, padding))
            pieces = [piece.contiguous() for piece in padded.split(each)]
        source = torch.distributed.get_global_rank(self.process_group, owner)
        torch.distributed.scatter(received, pieces, src=source, group=self.process_group)
        return received[: self.local.shape[0]]

    def write(self, rows: Tensor) -> None:
        """Write new rows where the gradient was finite."""
        weights = self.weights()
        kept = select(self.keep.squeeze(0).to(weights.dtype), rows, weights)
        self.target.copy_(kept.view(self.target.shape))
        if "master" in self.state:
            self.local.copy_(kept)


def _step_at_owners(chunk: list[_Shard], rule: StepRule) -> None:
    """Gather the weights and momenta, step at the owners, scatter the weights."""
    gathered = [s.gather(torch.stack((s.weights(), s.momentum.to(s.wide))), owner) for owner, s in enumerate(chunk)]
    results: list[Tensor | None] = [None] * len(chunk)
    for index, (shard, pair) in enumerate(zip(chunk, gathered)):
        if pair is not None:
            results[index] = _step_whole(shard, pair[0], pair[1], rule)
    for owner, (shard, result) in enumerate(zip(chunk, results)):
        shard.write(shard.scatter(result, owner))
        if shard.name == "spectral" and shard.process_group is not None:
            source = torch.distributed.get_global_rank(shard.process_group, owner)
            for key in ("left", "right"):
                torch.distributed.broadcast(shard.state[key], src=source, group=shard.process_group)


def _step_whole(shard: _Shard, weights: Tensor, momentum: Tensor, rule: StepRule) -> Tensor:
    """Step a whole matrix block by block; singular vectors go into the state."""
    from manifoldnorm.optim.momentum import equilibrate
    from manifoldnorm.optim.state import read_frames, write_frames_

    result = weights.clone()
    for block in blocks_of(result, shard.group["split"]):
        old, direction = block.rows_of(weights).unsqueeze(0), block.rows_of(momentum).unsqueeze(0)
        if shard.group["precondition"] not in (None, "adam"):
            direction = equilibrate(direction, shard.group["precondition"])
        if shard.name == "euclidean":
            new = old.clone()
            muon_step_(new, direction, shard.keep, rule, shard.group["weight_decay"])
        else:
            radius = shard.state["radius"][block.index : block.index + 1]
            manifold = build(shard.name, radius, sigma=shard.group["sigma"], like=old)
            frame = read_frames([block], [shard.state]) if shard.name == "spectral" else None
            new, moved = constrained_step(manifold, old, direction, frame, rule)
            if frame is not None and moved is not None:
                kept = tuple(select(shard.keep, after, before) for after, before in zip(moved, frame))
                write_frames_([block], [shard.state], kept)
        block.rows_of(result).copy_(new.squeeze(0))
    return result


def _step_locally(chunk: list[_Shard], rule: StepRule) -> None:
    """Project and retract rows where they are; only the direction visits an owner, for its polar factor."""
    tangents, ambients = [], []
    for shard in chunk:
        weights, momentum = shard.weights().unsqueeze(0), shard.momentum.to(shard.wide).unsqueeze(0)
        tangent = rule.direction == "tangent"
        tangents.append(shard.manifold().proju(weights, momentum) if tangent else momentum)
        ambients.append(_whole_norm(momentum, shard.process_group))
    gathered = [shard.gather(x, owner) for owner, (shard, x) in enumerate(zip(chunk, tangents))]
    directions = [
        None if x is None else (rule.polar_factor(x) * above_rounding(x, ambient)).squeeze(0)
        for x, ambient in zip(gathered, ambients)
    ]
    for owner, (shard, direction) in enumerate(zip(chunk, directions)):
        rows = shard.scatter(direction, owner).unsqueeze(0)
        manifold, weights = shard.manifold(), shard.weights().unsqueeze(0)
        if rule.post_project and rule.direction == "tangent":
            rows = post_projected(manifold, weights, rows, None)
        factor = _whole_factor(shard, manifold, rule)
        shard.write(manifold.retr(weights, rows * (-rule.lr * factor)).squeeze(0))


def _whole_factor(shard: _Shard, manifold: MatrixManifold, rule: StepRule) -> float | Tensor:
    """Return the factor on lr for the shape of the whole matrix."""
    from manifoldnorm.optim.direction import step_factor

    shape = (1, *matrix_shape(shard.parameter))
    return step_factor(manifold, torch.empty(shape, device="meta"), torch.empty(shape, device="meta"), rule.scale)


def _whole_norm(rows: Tensor, group: ProcessGroup | None) -> Tensor:
    """Frobenius norm of the matrix whose rows are spread over the processes."""
    square = (rows * rows).sum((-2, -1), keepdim=True)
    if group is not None:
        torch.distributed.all_reduce(square, group=group)
    return square.sqrt()


class _ShardedFrobeniusSphere(FrobeniusSphere):
    """The Frobenius sphere of matrices whose rows are spread over the processes: sums run over all of them."""

    def __init__(self, radius: Tensor, rows: int, group: ProcessGroup | None) -> None:
        super().__init__(radius)
        self._rows, self._group = rows, group

    def _dot(self, u: Tensor, v: Tensor) -> Tensor:
        total = super()._dot(u, v).contiguous()
        if self._group is not None:
            torch.distributed.all_reduce(total, group=self._group)
        return total

    def _length(self, u: Tensor) -> Tensor:
        return _whole_norm(u, self._group)


class _ShardedOblique(Oblique):
    """Oblique rows of a matrix whose rows are spread over the processes: everything is local."""

    def __init__(self, radius: Tensor, rows: int) -> None:
        super().__init__(radius, dim=-1)
        self._rows = rows
