"""Time and memory of hyperbolic layers, forward and backward, against torch and HypLL, interleaved on one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import grow_heap, interleaved, results_folder, versions, write_json
from manifoldnorm.equivariant import (
    CyclicGroup4,
    DihedralGroup4,
    JointOrientationBatchNorm2d,
    PlanarGroup,
    PoincareGroupConv2d,
)
from manifoldnorm.nn.hyperbolic import PoincareConv2d
from manifoldnorm.nn.hyperbolic_batchnorm import PoincareBatchNorm

BATCH, CHANNELS, C = 32, 16, 0.1


def saved_bytes(function: Callable[[], Tensor], ignored: list[Tensor]) -> int:
    """Count the bytes that one forward pass keeps for its backward pass, each storage once, without the parameters."""
    storages: dict[int, int] = {}
    skip = {t.untyped_storage().data_ptr() for t in ignored}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in skip:
            storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = function()
    total = sum(storages.values())
    del output
    return total


class Case:
    """A module with its input; `unwrap` gets the tensor out of what the module returns."""

    def __init__(self, module: nn.Module, x: Any, unwrap: Callable[[Any], Tensor] = lambda y: y) -> None:
        self.module, self.x, self.unwrap = module, x, unwrap
        self.leaf: Tensor = x if isinstance(x, Tensor) else x.tensor
        self.leaf.requires_grad_()
        self.gradient = torch.randn_like(self.forward())

    def forward(self) -> Tensor:
        """Run the module."""
        return self.unwrap(self.module(self.x))

    def both(self) -> None:
        """Run the module and its backward pass."""
        self.leaf.grad = None
        self.forward().backward(self.gradient)

    def memory(self) -> float:
        """Return the MiB that a forward pass keeps."""
        parameters = [getattr(p, "tensor", p) for p in self.module.parameters()]
        return saved_bytes(self.forward, [p.data for p in parameters]) / 2**20


def _ours(side: int) -> dict[str, Case]:
    def image() -> Tensor:
        return 0.5 * torch.randn(BATCH, CHANNELS, side, side)

    def conv() -> nn.Module:
        return PoincareConv2d(CHANNELS, CHANNELS, 3, padding=1, c=C)

    def grouped(group: PlanarGroup, channels: int) -> Case:
        layers = nn.Sequential(
            PoincareGroupConv2d(channels, channels, 3, padding=1, group=group, c=C),
            JointOrientationBatchNorm2d(channels, group=group, c=C),
        )
        return Case(layers, 0.5 * torch.randn(BATCH, channels, group.order, side, side))

    return {
        "torch Conv2d + BatchNorm2d": Case(
            nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)), image()
        ),
        "PoincareConv2d": Case(conv(), image()),
        "PoincareConv2d + PoincareBatchNorm": Case(nn.Sequential(conv(), PoincareBatchNorm(CHANNELS, c=C)), image()),
        "same, Frechet mean": Case(
            nn.Sequential(conv(), PoincareBatchNorm(CHANNELS, c=C, average="frechet", mean_steps=3)), image()
        ),
        "C4 group conv + batch norm, 4 x 4 channels": grouped(CyclicGroup4(), 4),
        "D4 group conv + batch norm, 2 x 8 channels": grouped(DihedralGroup4(), 2),
    }


def _hypll(side: int) -> dict[str, Case]:
    from hypll import nn as hnn  # type: ignore[import-not-found]
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall  # type: ignore[import-not-found]
    from hypll.tensors import ManifoldTensor, TangentTensor  # type: ignore[import-not-found]

    ball = PoincareBall(Curvature(C))

    def image() -> Any:
        tangent = TangentTensor(0.5 * torch.randn(BATCH, CHANNELS, side, side), man_dim=1, manifold=ball)
        return ManifoldTensor(ball.expmap(tangent).tensor.detach(), manifold=ball, man_dim=1)

    def conv() -> nn.Module:
        return hnn.HConvolution2d(CHANNELS, CHANNELS, 3, manifold=ball, padding=1)

    def norm() -> nn.Module:
        return hnn.HBatchNorm2d(CHANNELS, manifold=ball, use_midpoint=True)

    def tensor(y: Any) -> Tensor:
        return y.tensor

    return {
        "HypLL HConvolution2d": Case(conv(), image(), tensor),
        "HypLL HConvolution2d + HBatchNorm2d (midpoint)": Case(nn.Sequential(conv(), norm()), image(), tensor),
    }


def run_kernels(*, quick: bool, hypll: str | None) -> None:
    """Print the table and write JSON."""
    console, folder = Console(), results_folder("equivariant")
    if hypll is not None:
        sys.path.insert(0, hypll)
    results: list[dict[str, Any]] = []
    grow_heap()
    for side in (16, 32):
        torch.manual_seed(0)
        cases = _ours(side)
        try:
            cases |= _hypll(side)
        except ModuleNotFoundError:
            console.print(
                "HypLL is not installed; pass --hypll FOLDER after pip install --no-deps --target FOLDER hypll"
            )
        seconds = interleaved({name: case.both for name, case in cases.items()}, rounds=5 if quick else 25)
        results += [
            {"side": side, "layer": name, "seconds": seconds[name], "saved_mib": case.memory()}
            for name, case in cases.items()
        ]
    write_json(folder / "kernels.json", {"versions": versions("hypll"), "results": results})
    console.print(_table(results))


def _table(results: list[dict[str, Any]]) -> Table:
    view = Table(title=f"forward + backward, float32, batch {BATCH}, {CHANNELS} channels, 3x3, c={C}, one thread")
    for head in ("layer", "image", "ms", "/ torch", "/ HypLL", "saved MiB", "saved / HypLL"):
        view.add_column(head)
    for r in results:
        same = {q["layer"]: q for q in results if q["side"] == r["side"]}
        torch_time = same["torch Conv2d + BatchNorm2d"]["seconds"]
        with_norm = "norm" in r["layer"].lower() or "Frechet" in r["layer"]
        rival = same.get(f"HypLL HConvolution2d{' + HBatchNorm2d (midpoint)' if with_norm else ''}")
        ours = rival is not None and "HypLL" not in r["layer"] and "torch" not in r["layer"]
        view.add_row(
            r["layer"],
            f"{r['side']}x{r['side']}",
            f"{1e3 * r['seconds']:.1f}",
            f"{r['seconds'] / torch_time:.2f}",
            f"{r['seconds'] / rival['seconds']:.3f}" if ours and rival else "",
            f"{r['saved_mib']:.1f}",
            f"{r['saved_mib'] / rival['saved_mib']:.3f}" if ours and rival else "",
        )
    return view
