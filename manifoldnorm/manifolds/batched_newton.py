"""Safeguarded Newton steps for a batch of systems, which leave the iteration when they have converged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.manifolds.checks import warn_not_converged

_MAX_STEPS = 100


class Trial(NamedTuple):
    """What is known at a trial point, per element (B, ...): a merit to lower, whether it is solved, and other results.

    Attributes
    ----------
    merit : Tensor
        Shape (B,); a step is taken when it falls.
    residual, tolerance : Tensor
        Shape (B,); an element is solved when the first is at most the second.
    carried : tuple of Tensor
        Shape (B, ...); what the step is made of, and what the caller wants of the solution.
    """

    merit: Tensor
    residual: Tensor
    tolerance: Tensor
    carried: tuple[Tensor, ...] = ()


def batched_newton(
    start: Tensor,
    evaluate: Callable[[Tensor, Tensor | None], Trial],
    propose: Callable[[Trial], Tensor],
    solves: str,
    retreat: Callable[[Trial, Tensor], Tensor] = lambda trial, step: step / 4,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Iterate unknown + step; where a step does not lower the merit, another one is tried from the same place.

    Parameters
    ----------
    start : Tensor
        Unknowns, shape (B, n).
    evaluate : callable
        Gets the unknowns of the elements that have not converged yet, and their indices (None for all).
    propose : callable
        Turns what is known of elements that have not converged into their next steps.
    solves : str
        What is solved for, in the warning.
    retreat : callable
        Turns what is known, and a step that did not lower the merit, into the next one: a quarter of it by default.

    Returns
    -------
    unknowns : Tensor
        The best ones found, shape (B, n).
    carried : tuple of Tensor
        What their trials carried.

    Warns
    -----
    ConvergenceWarning
        Names the first element that did not converge.
    """
    rows: Tensor | None = None
    at, best = start, evaluate(start, None)
    if start.shape[0] == 0:
        return at, best.carried
    solution: list[Tensor] = []
    step: Tensor | None = None
    improved = torch.ones_like(best.merit, dtype=torch.bool)
    all_improved = True
    for _ in range(_MAX_STEPS):
        going = _unfinished(best, improved)
        count = int(going.sum())
        if count == 0:
            return _finish(solution, rows, at, best)
        # Those that are done take part until they are the majority: picking the others out costs several operations.
        if 2 * count <= going.shape[0]:
            _store(solution, rows, at, best)
            at, best, improved = at[going], _select(best, going), improved[going]
            step = None if step is None else step[going]
            rows = going.nonzero().squeeze(-1) if rows is None else rows[going]
        if step is None or all_improved:
            step = propose(best)
        else:
            step = _where(improved, propose(best), retreat(best, step))
        trial = at + step
        new = evaluate(trial, rows)
        improved = (new.merit < best.merit) | (new.residual <= 0.5 * best.residual)
        all_improved = bool(improved.all())
        if all_improved:
            at, best = trial, new
        else:
            at, best = _where(improved, trial, at), _merge(improved, new, best)
    _warn(solves, rows, best, start.shape[0])
    return _finish(solution, rows, at, best)


def _unfinished(trial: Trial, improved: Tensor) -> Tensor:
    """Tell which elements have not converged: not to the tolerance, and not to where rounding stalls them.

    An element that is not finite never improves; it must not keep the others waiting (no comparison is true of it).
    """
    return (trial.residual > trial.tolerance) & (improved | (trial.residual > 30 * trial.tolerance))


def _store(solution: list[Tensor], rows: Tensor | None, at: Tensor, best: Trial) -> None:
    """Write the present state of all running elements into the results."""
    values = (at, *best.carried)
    if not solution:
        solution.extend(value.clone() for value in values)
    else:
        for target, value in zip(solution, values):
            target[rows] = value


def _finish(solution: list[Tensor], rows: Tensor | None, at: Tensor, best: Trial) -> tuple[Tensor, tuple[Tensor, ...]]:
    if rows is None:
        return at, best.carried
    _store(solution, rows, at, best)
    return solution[0], tuple(solution[1:])


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask[(...,) + (None,) * (a.ndim - 1)], a, b)


def _merge(mask: Tensor, a: Trial, b: Trial) -> Trial:
    merit, residual, tolerance = (_where(mask, x, y) for x, y in zip(a[:3], b[:3]))
    return Trial(merit, residual, tolerance, tuple(_where(mask, x, y) for x, y in zip(a.carried, b.carried)))


def _select(trial: Trial, mask: Tensor) -> Trial:
    merit, residual, tolerance = (x[mask] for x in trial[:3])
    return Trial(merit, residual, tolerance, tuple(x[mask] for x in trial.carried))


def _warn(solves: str, rows: Tensor | None, best: Trial, count: int) -> None:
    """Name the first element whose residual is not within a thousand tolerances."""
    index = torch.arange(count, device=best.residual.device) if rows is None else rows
    residual = torch.zeros(count, dtype=best.residual.dtype, device=best.residual.device)
    failed = torch.zeros(count, dtype=torch.bool, device=best.residual.device)
    residual[index] = best.residual
    failed[index] = ~(best.residual <= 1e3 * best.tolerance)
    if bool(failed.any()):
        remedy = "the coordinates are too large for this dtype; check the conditioning of the data"
        warn_not_converged(solves, residual, failed, _MAX_STEPS, remedy)
