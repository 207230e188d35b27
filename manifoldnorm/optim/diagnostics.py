"""What to watch while weights move on their manifolds: constraint error, stationarity, angle per step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from manifoldnorm.manifolds.matrices import MatrixManifold
from manifoldnorm.optim import distributed
from manifoldnorm.optim.blocks import blocks_of
from manifoldnorm.optim.constraints import build
from manifoldnorm.optim.settings import manifold_of, parameter_name


def _constrained(optimizer: Optimizer) -> Iterator[tuple[str, Tensor, dict[str, Any], dict[str, Any]]]:
    """Yield the label, the parameter, its group and its state for every parameter that MACRO steps."""
    position = 0
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if "manifold" in group and "momentum_buffer" in optimizer.state.get(parameter, {}):
                named = group.get("param_names") is not None
                label = parameter_name(group, index).strip("'") if named else str(position)
                yield label, parameter, group, optimizer.state[parameter]
            position += 1


def _matrices(
    parameter: Tensor, group: dict[str, Any], state: dict[str, Any]
) -> Iterator[tuple[MatrixManifold, Tensor]]:
    """Yield each block of the weight (its master, if it has one) in float64, with its manifold."""
    name, _ = manifold_of(parameter, group)
    whole = distributed.whole(state.get("master", parameter)).double()
    for block in blocks_of(whole, group["split"]):
        yield build(name, state["radius"][block.index].double()), block.matrix_of(whole)


@torch.no_grad()
def constraint_error(optimizer: Optimizer) -> dict[str, float]:
    """Relative deviation of each weight from its manifold.

    Parameters
    ----------
    optimizer : MACRO or MACROWithAdamW

    Returns
    -------
    dict of str to float
        By parameter name, or position where no names were given. | |W| / R - 1 | for norms (the worst row or column on
        the oblique manifold), the largest entry of |W^T W / R^2 - I| for Stiefel and Grassmann, zero for "euclidean".
        Of the master weights, where there are any; computed in float64.

    Examples
    --------
    >>> from manifoldnorm.optim import MACRO
    >>> optimizer = MACRO(torch.nn.Linear(4, 4, bias=False).named_parameters())
    >>> constraint_error(optimizer)["weight"] < 1e-6
    True
    """
    errors = {}
    for label, parameter, group, state in _constrained(optimizer):
        if manifold_of(parameter, group)[0] == "euclidean":
            errors[label] = 0.0
        else:
            pairs = _matrices(parameter, group, state)
            errors[label] = max(float(manifold.constraint_error(matrix)) for manifold, matrix in pairs)
    return errors


@torch.no_grad()
def stationarity(optimizer: Optimizer) -> dict[str, float]:
    """Nuclear norm of the Riemannian gradient of each weight, which is zero exactly at critical points.

    With `post_project` the loss falls by lr * s times this number in a small step without momentum.

    Parameters
    ----------
    optimizer : MACRO or MACROWithAdamW
        With gradients in place.

    Returns
    -------
    dict of str to float
        For the parameters that have gradients, by name or position.
    """
    values = {}
    for label, parameter, group, state in _constrained(optimizer):
        if parameter.grad is None:
            continue
        gradient = distributed.whole(parameter.grad).double()
        blocks = blocks_of(gradient, group["split"])
        if manifold_of(parameter, group)[0] == "euclidean":
            tangents = [block.matrix_of(gradient) for block in blocks]
        else:
            pairs = zip(blocks, _matrices(parameter, group, state))
            tangents = [manifold.proju(matrix, block.matrix_of(gradient)) for block, (manifold, matrix) in pairs]
        values[label] = sum(float(torch.linalg.svdvals(tangent).sum()) for tangent in tangents)
    return values


@contextmanager
def rotation_angle(optimizer: Optimizer) -> Iterator[dict[str, float]]:
    """Record by which angle, in radians, each weight turns in the steps made inside the context.

    Weights of fixed norm turn at a rate that lr alone sets (rotational equilibrium): arctan(lr) in every step with
    `scale="angular"` on the Frobenius sphere and the oblique manifold. Costs a copy of the weights.

    Parameters
    ----------
    optimizer : Optimizer
        Any; parameters of fewer than two dimensions are left out.

    Yields
    ------
    dict of str to float
        Filled when the context ends; by parameter name or position.

    Examples
    --------
    >>> from manifoldnorm.optim import MACRO
    >>> layer = torch.nn.Linear(4, 4, bias=False)
    >>> optimizer = MACRO(layer.named_parameters(), lr=0.02, scale="angular")
    >>> layer.weight.grad = torch.randn(4, 4)
    >>> with rotation_angle(optimizer) as angles:
    ...     optimizer.step()
    >>> round(angles["weight"], 5)
    0.02
    """
    before: dict[str, tuple[Tensor, Tensor]] = {}
    position = 0
    for group in optimizer.param_groups:
        names = group.get("param_names")
        for index, parameter in enumerate(group["params"]):
            if parameter.ndim >= 2:
                label = str(position) if names is None else names[index]
                before[label] = (parameter, distributed.whole(parameter).double().clone())
            position += 1
    angles: dict[str, float] = {}
    yield angles
    for label, (parameter, old) in before.items():
        new = distributed.whole(parameter).double()
        old, new = old / torch.linalg.vector_norm(old), new / torch.linalg.vector_norm(new)
        half = torch.atan2(torch.linalg.vector_norm(new - old), torch.linalg.vector_norm(new + old))
        angles[label] = float(2 * half)


@torch.no_grad()
def project_to_constraint_(optimizer: Optimizer) -> None:
    """Move every weight onto its manifold, for instance after averaging weights or loading them from elsewhere."""
    for _, parameter, group, state in _constrained(optimizer):
        name, _ = manifold_of(parameter, group)
        if name == "euclidean":
            continue
        target = state.get("master", parameter)
        whole = distributed.whole(target).double()
        for block in blocks_of(whole, group["split"]):
            manifold = build(name, state["radius"][block.index].double())
            projected = manifold.projx(block.matrix_of(whole))
            block.rows_of(whole).copy_(projected.view(block.rows_of(whole).shape))
        distributed.assign_whole_(target, whole)
        if target is not parameter:
            distributed.assign_whole_(parameter, whole)


@torch.no_grad()
def set_radius(optimizer: Optimizer, name: str, radius: float) -> None:
    """Change the radius on which a weight is held, and scale the weight to it.

    Parameters
    ----------
    optimizer : MACRO or MACROWithAdamW
    name : str
        The parameter's name, or its position as in `constraint_error`.
    radius : float
        Positive; for all blocks of a split parameter.
    """
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    found = {label: (p, g, s) for label, p, g, s in _constrained(optimizer) if "radius" in s}
    if name not in found:
        raise ValueError(f"no constrained parameter is called {name!r}; there are {', '.join(found) or 'none'}")
    parameter, group, state = found[name]
    targets = [parameter, state["master"]] if "master" in state else [parameter]
    for target in targets:
        whole = distributed.whole(target).clone()
        for block in blocks_of(whole, group["split"]):
            block.rows_of(whole).mul_(radius / state["radius"][block.index])
        distributed.assign_whole_(target, whole)
    state["radius"].fill_(radius)
