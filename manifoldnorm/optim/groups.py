"""Which parameter is stepped by what: routing of a model's parameters by module type and name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from torch import Tensor, nn

OUTPUT_PATTERNS = ("*head*", "*classifier*", "*unembed*", "*output_projection*")
"""Names of modules whose weight maps to logits and is left to AdamW; override with `adamw_patterns`."""


@dataclass(frozen=True)
class Route:
    """Where one parameter goes.

    Attributes
    ----------
    name : str
        As in `model.named_parameters()`.
    shape : tuple of int
    algorithm : str
        "macro", "adamw", or "frozen" for parameters without gradients.
    reason : str
        Why.
    split : tuple of int, optional
        Row counts of the blocks of a fused projection.
    """

    name: str
    shape: tuple[int, ...]
    algorithm: str
    reason: str
    split: tuple[int, ...] | None = None


def route_parameters(
    model: nn.Module,
    *,
    macro_patterns: Sequence[str] = (),
    adamw_patterns: Sequence[str] = OUTPUT_PATTERNS,
    split: Mapping[str, Sequence[int]] | None = None,
) -> list[Route]:
    """Decide for every parameter of a model whether MACRO or AdamW steps it.

    Weights of linear and convolution layers, attention projections and recurrent layers go to MACRO; embeddings, heads,
    norms, vectors, depthwise kernels and everything else go to AdamW. Parameters that are shared count once, and go to
    AdamW when any of their uses does.

    Parameters
    ----------
    model : Module
    macro_patterns : sequence of str
        Shell patterns of parameter names that go to MACRO whatever the module, such as "blocks.*.mixing".
    adamw_patterns : sequence of str
        Shell patterns that go to AdamW; matched against the name of the parameter and of its module.
        `macro_patterns` win over these.
    split : mapping of str to sequence of int, optional
        Row counts of fused projections, by pattern: {"*.qkv.weight": [64, 64, 64]}. The fused projections of
        `MultiheadAttention`, LSTM and GRU are split without being named.

    Raises
    ------
    ValueError
        Naming the parameter, when a pattern sends a vector or an embedding to MACRO, or a pattern matches nothing.

    Examples
    --------
    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    >>> for route in route_parameters(model):
    ...     print(route.name, route.algorithm)
    0.weight adamw
    1.weight macro
    1.bias adamw
    2.weight adamw
    2.bias adamw
    """
    owners = _owners(model)
    routes = []
    unused = {*macro_patterns, *(split or ())}
    for name, parameter in model.named_parameters():
        algorithm, reason = _decide(parameter, owners[parameter], adamw_patterns)
        wanted = [pattern for pattern in macro_patterns if _any_name(owners[parameter], pattern)]
        unused -= set(wanted)
        if wanted and algorithm == "adamw":
            _check_forced(name, parameter, owners[parameter], wanted[0])
            algorithm, reason = "macro", f"matches {wanted[0]!r}"
        blocks = _split_of(parameter, owners[parameter], split or {}, unused)
        routes.append(Route(name, tuple(parameter.shape), algorithm, reason, blocks if algorithm == "macro" else None))
    if unused:
        raise ValueError(f"no parameter matches {', '.join(sorted(unused))}; names are as in model.named_parameters()")
    return routes


def macro_param_groups(
    model: nn.Module,
    *,
    macro: Mapping[str, Any] | None = None,
    adamw: Mapping[str, Any] | None = None,
    macro_patterns: Sequence[str] = (),
    adamw_patterns: Sequence[str] = OUTPUT_PATTERNS,
    split: Mapping[str, Sequence[int]] | None = None,
    show: bool = False,
) -> list[dict[str, Any]]:
    """Sort a model's parameters into groups for `MACROWithAdamW`.

    Parameters
    ----------
    model : Module
    macro, adamw : mapping, optional
        Settings of the groups of each algorithm; AdamW has lr 3e-4, betas (0.9, 0.95) and no decay by default.
    macro_patterns, adamw_patterns, split
        As in `route_parameters`.
    show : bool
        Print the routing table.

    Returns
    -------
    list of dict
        Groups with `algorithm`, `params`, `param_names`; fused projections have a group for each way of splitting. The
        groups with algorithm "macro" alone are what `MACRO` takes.

    Examples
    --------
    >>> groups = macro_param_groups(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    >>> [(group["algorithm"], group["param_names"]) for group in groups]
    [('macro', ['0.weight', '2.weight']), ('adamw', ['0.bias', '2.bias'])]
    """
    routes = route_parameters(model, macro_patterns=macro_patterns, adamw_patterns=adamw_patterns, split=split)
    if show:
        print(routing_table(routes))
    parameters = dict(model.named_parameters())
    groups: dict[tuple[str, tuple[int, ...] | None], list[str]] = {}
    for route in routes:
        if route.algorithm != "frozen":
            groups.setdefault((route.algorithm, route.split), []).append(route.name)
    result: list[dict[str, Any]] = []
    for (algorithm, blocks), names in groups.items():
        settings = dict(macro or {}) if algorithm == "macro" else {**_ADAMW_SETTINGS, **(adamw or {})}
        if blocks is not None:
            settings["split"] = list(blocks)
        members = [parameters[name] for name in names]
        result.append({"algorithm": algorithm, "params": members, "param_names": names, **settings})
    return result


_ADAMW_SETTINGS: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.0}


def routing_table(routes: Sequence[Route]) -> str:
    """Format routes as a table of text.

    Examples
    --------
    >>> print(routing_table([Route("fc.weight", (8, 4), "macro", "weight of Linear")]))
    parameter  shape   algorithm  reason
    fc.weight  (8, 4)  macro      weight of Linear
    """
    rows = [("parameter", "shape", "algorithm", "reason")]
    for route in routes:
        reason = route.reason + (f", split {route.split}" if route.split else "")
        rows.append((route.name, str(route.shape), route.algorithm, reason))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


@dataclass(frozen=True)
class _Owner:
    """One use of a parameter: the module that holds it, its full name, and the name within the module."""

    module: nn.Module
    name: str
    attribute: str


def _owners(model: nn.Module) -> dict[Tensor, list[_Owner]]:
    owners: dict[Tensor, list[_Owner]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{attribute}" if prefix else attribute
            owners.setdefault(parameter, []).append(_Owner(module, name, attribute))
    return owners


def _any_name(owners: Sequence[_Owner], pattern: str) -> bool:
    return any(fnmatch(owner.name, pattern) for owner in owners)


def _decide(parameter: Tensor, owners: Sequence[_Owner], adamw_patterns: Sequence[str]) -> tuple[str, str]:
    if not parameter.requires_grad:
        return "frozen", "requires_grad is False"
    if parameter.ndim < 2:
        return "adamw", "fewer than two dimensions"
    decisions = [_decide_use(parameter, owner, adamw_patterns) for owner in owners]
    for algorithm, reason in decisions:
        if algorithm == "adamw":
            return algorithm, reason + (", shared" if len(owners) > 1 else "")
    return decisions[0]


def _decide_use(parameter: Tensor, owner: _Owner, adamw_patterns: Sequence[str]) -> tuple[str, str]:
    module, kind = owner.module, type(owner.module).__name__
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "adamw", f"weight of {kind}"
    for pattern in adamw_patterns:
        if fnmatch(owner.name, pattern) or fnmatch(owner.name.rpartition(".")[0], pattern):
            return "adamw", f"matches {pattern!r}"
    if isinstance(module, nn.modules.conv._ConvNd):
        if module.transposed:
            return "adamw", f"kernel of {kind}, whose first dimension is the input"
        if parameter[0].numel() == module.kernel_size[0] ** len(module.kernel_size) and module.groups > 1:
            return "adamw", f"depthwise kernel of {kind}"
        return "macro", f"kernel of {kind}"
    matrix_modules = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
    if isinstance(module, matrix_modules) and parameter.ndim == 2:
        return "macro", f"weight of {kind}"
    if isinstance(module, nn.utils.parametrize.ParametrizationList):
        # A learnable gain leaves the matrix that it multiplies a matrix; other parametrisations do not.
        if owner.attribute == "original" and all(getattr(p, "multiplies_constrained_weight", False) for p in module):
            return "macro", "weight under a learnable gain"
        return "adamw", "under a parametrisation"
    return "adamw", f"not a known matrix ({kind})"


def _check_forced(name: str, parameter: Tensor, owners: Sequence[_Owner], pattern: str) -> None:
    if parameter.ndim < 2:
        raise ValueError(
            f"{name!r} has shape {tuple(parameter.shape)}, and MACRO steps matrices; narrow macro_patterns, of which "
            f"{pattern!r} matches it"
        )
    if any(isinstance(owner.module, (nn.Embedding, nn.EmbeddingBag)) for owner in owners):
        raise ValueError(
            f"{name!r} is the weight of an embedding, whose rows are looked up one at a time, so that a matrix "
            f"manifold does not fit it; narrow macro_patterns, of which {pattern!r} matches it"
        )


def _split_of(
    parameter: Tensor, owners: Sequence[_Owner], split: Mapping[str, Sequence[int]], unused: set[str]
) -> tuple[int, ...] | None:
    for pattern, sizes in split.items():
        if _any_name(owners, pattern):
            unused.discard(pattern)
            return tuple(sizes)
    module, attribute = owners[0].module, owners[0].attribute
    rows = parameter.shape[0] if parameter.ndim else 0
    if isinstance(module, nn.MultiheadAttention) and attribute == "in_proj_weight":
        return (rows // 3,) * 3
    gates = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}.get(type(module), 1)
    fused = gates > 1 and attribute.startswith(("weight_ih", "weight_hh")) and parameter.ndim == 2
    return (rows // gates,) * gates if fused else None


__all__ = ["OUTPUT_PATTERNS", "Route", "macro_param_groups", "route_parameters", "routing_table"]
