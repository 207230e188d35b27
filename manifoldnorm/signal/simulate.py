"""Samples of stationary vector signals with given power and reflection matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import sqrtm
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.signal.autoregression import autoregression_from_reflection


def simulate_autoregression(
    power: Tensor,
    reflection: Tensor,
    samples: int,
    *,
    burn_in: int = 100,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw Gaussian autoregressive signals with the given power and reflection matrices.

    Parameters
    ----------
    power : Tensor
        Hermitian positive definite, shape (..., d, d).
    reflection : Tensor
        Reflection matrices, shape (..., M, d, d).
    samples : int
        Length of the signals.
    burn_in : int
        Samples that are dropped, until the start from rest is forgotten; more for models near the boundary.
    generator : torch.Generator, optional
        For repeatable draws.

    Returns
    -------
    Tensor
        Shape (..., samples, d); differentiable in the model.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> simulate_autoregression(one, 0.5 * one[None], 16).shape
    torch.Size([16, 1])
    """
    if samples < 1 or burn_in < 0:
        raise ValueError(f"samples must be positive and burn_in not negative, got {samples} and {burn_in}")
    coefficients, innovation = autoregression_from_reflection(power, reflection)
    dtype = working_dtype(coefficients)
    coefficients, root = coefficients.to(dtype), sqrtm(innovation.to(dtype))
    order, d = coefficients.shape[-3], coefficients.shape[-1]
    batch = root.shape[:-2]
    noise = torch.randn(*batch, burn_in + samples, d, generator=generator, dtype=dtype, device=root.device)
    driven = noise @ root.mT
    gain = -coefficients.movedim(-3, -2).reshape(*batch, d, order * d)
    history = torch.zeros(*batch, order * d, dtype=dtype, device=root.device)
    outputs = []
    for step in driven.unbind(-2):
        current = step + (gain @ history.unsqueeze(-1)).squeeze(-1)
        history = torch.cat((current, history[..., : (order - 1) * d]), -1)
        outputs.append(current)
    return torch.stack(outputs[burn_in:], -2).to(power.dtype)
