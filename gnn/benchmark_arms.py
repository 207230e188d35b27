"""The arms of the benchmark: what stands in the norm slot, and which scale it gets."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from manifoldnorm.gnn.controls import GatedNorm, PreScaledNorm, RenormalisedNorm, RepeatedNorm
from manifoldnorm.gnn.policy import NormFactory
from manifoldnorm.gnn.postdeg import PostDegNorm
from manifoldnorm.gnn.scale import TopologyScale

GraphScale = Callable[[Tensor, int, np.random.Generator], Tensor]


def _topology(scale: TopologyScale) -> GraphScale:
    return lambda edge_index, num_nodes, random: scale(edge_index, num_nodes)


def _graphwise(edge_index: Tensor, num_nodes: int, random: np.random.Generator) -> Tensor:
    scale = TopologyScale()(edge_index, num_nodes)
    return scale.mean(0, keepdim=True).expand(num_nodes, 1)


def _permuted(edge_index: Tensor, num_nodes: int, random: np.random.Generator) -> Tensor:
    return TopologyScale()(edge_index, num_nodes)[torch.from_numpy(random.permutation(num_nodes))]


def _random(edge_index: Tensor, num_nodes: int, random: np.random.Generator) -> Tensor:
    """Log-uniform between the smallest and the largest degree scale of the graph."""
    log_scale = TopologyScale()(edge_index, num_nodes).log()
    low, high = float(log_scale.min()), float(log_scale.max())
    return torch.from_numpy(np.exp(random.uniform(low, high, (num_nodes, 1)))).to(torch.get_default_dtype())


def _layer_norm(dim: int) -> nn.Module:
    return nn.LayerNorm(dim)


def _post(dim: int) -> nn.Module:
    return PostDegNorm(dim)


def _gate(dim: int) -> nn.Module:
    return GatedNorm(dim)


def _gate_with_degree(dim: int) -> nn.Module:
    return GatedNorm(dim, sees_degree=True)


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes
    ----------
    title : str
        One line for tables.
    role : str
        "baseline", "rule", "variant", "control", "diagnostic", or the falsifier that it belongs to ("F1" ... "F4").
    norm : callable
        Builds the norm.
    scale : callable or None
        Computes a graph's scale.
    last_only : bool
        The norm stands in the last slot only, LayerNorm in the others.
    head_degree : bool
        log(1 + degree) goes to the head.
    """

    title: str
    role: str
    norm: NormFactory
    scale: GraphScale | None = None
    last_only: bool = False
    head_degree: bool = False

    def norms(self, slots: int) -> list[NormFactory]:
        """List the factories of a policy's norm slots."""
        return [_layer_norm] * (slots - 1) + [self.norm] if self.last_only else [self.norm] * slots


_DEGREE = _topology(TopologyScale())

ARMS: dict[str, Arm] = {
    "layernorm": Arm("LayerNorm", "baseline", _layer_norm),
    "postdeg": Arm("PostDeg, 1/(1+degree)", "rule", _post, _DEGREE),
    "postdeg_mean_one": Arm("PostDeg, graph mean one", "variant", _post, _topology(TopologyScale(normalize="graph"))),
    "last_only": Arm("PostDeg on the last norm only", "variant", _post, _DEGREE, last_only=True),
    "pre": Arm("scale before LayerNorm", "control", PreScaledNorm, _DEGREE),
    "graphwise": Arm("one scale per graph", "F1", _post, _graphwise),
    "extra_norm": Arm("LN(LN(u))", "F2", RepeatedNorm),
    "renormalised": Arm("LN(s LN(u))", "F2", RenormalisedNorm, _DEGREE),
    "gate": Arm("learned gate", "F3", _gate),
    "gate_degree": Arm("learned gate that sees degree", "diagnostic", _gate_with_degree),
    "inverse_root": Arm("PostDeg, (1+degree)^-1/2", "F4", _post, _topology(TopologyScale(power=0.5))),
    "core": Arm("PostDeg, 1/(1+core number)", "F4", _post, _topology(TopologyScale("core_number"))),
    "pagerank": Arm("PostDeg, 1/(1+n PageRank)", "F4", _post, _topology(TopologyScale("pagerank"))),
    "permuted": Arm("degree scale, permuted nodes", "F4", _post, _permuted),
    "random": Arm("random positive scale", "F4", _post, _random),
    "head_degree": Arm("LayerNorm, log degree at the head", "control", _layer_norm, head_degree=True),
}
