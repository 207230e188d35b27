"""Power and reflection matrices estimated from samples, inside the ball by construction."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import eigh, inv_sqrtm, symmetrize
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.manifolds.checks import require_tensor
from manifoldnorm.manifolds.complex_points import mask_failed
from manifoldnorm.signal.autoregression import Recursion, ReflectionModel


def lattice_reflection(x: Tensor, order: int, *, ridge: float = 1e-3) -> ReflectionModel:
    """Estimate an autoregressive model of vector signals by the normalised lattice recursion.

    At each order the reflection matrix is the coherence F_f^-1/2 F_fb F_b^-1/2 of the forward and the delayed backward
    prediction errors, whose singular values are at most one, strictly less with a ridge or with enough samples.

    Parameters
    ----------
    x : Tensor
        Signals of shape (..., samples, channels), complex.
    order : int
        Order M >= 1; samples - order must exceed the number of channels.
    ridge : float
        Multiple of the mean power that is added to the error covariances; keeps the estimate off the boundary.

    Returns
    -------
    ReflectionModel
        Power (..., d, d) and reflection matrices (..., M, d, d), of the dtype of `x`; differentiable.

    Raises
    ------
    ValueError
        For too few samples, or a signal whose covariance is singular; names the batch element and the eigenvalue.
    TypeError
        For a real tensor.

    Notes
    -----
    Morf, Vieira, Lee and Kailath (1978), with Hermitian roots as in `reflection_from_autocovariance`.

    Examples
    --------
    >>> x = torch.randn(10, 64, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    >>> [tuple(part.shape) for part in lattice_reflection(x, 3)]
    [(10, 2, 2), (10, 3, 2, 2)]
    """
    require_tensor(x, "x")
    if not x.is_complex():
        raise TypeError(f"x must be complex, got {x.dtype}; take the analytic signal, or x.to(torch.complex128)")
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., samples, channels), got {tuple(x.shape)}")
    samples, channels = x.shape[-2:]
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    if samples - order <= channels:
        raise ValueError(
            f"x has {samples} samples of {channels} channels; order {order} needs more than {order + channels}. "
            "Lower the order or give more samples"
        )
    if not ridge >= 0:
        raise ValueError(f"ridge must not be negative, got {ridge}")
    signal = x.to(working_dtype(x))
    power = symmetrize(_covariance(signal, signal))
    smallest = eigh(power).values[..., 0]
    limit = torch.finfo(smallest.dtype).eps * channels * power.detach().diagonal(dim1=-2, dim2=-1).real.sum(-1)
    message = "x{index} must have a positive definite covariance, but its smallest eigenvalue is {amount}"
    power = mask_failed(power, ~(smallest > limit), smallest, message)
    state, reflection = Recursion(power), []
    forward, backward = signal, signal
    for _ in range(order):
        forward, backward = forward[..., 1:, :], backward[..., :-1, :]
        left = inv_sqrtm(_ridged(_covariance(forward, forward), ridge))
        right = inv_sqrtm(_ridged(_covariance(backward, backward), ridge))
        omega = left @ _covariance(forward, backward) @ right
        reflection.append(omega)
        cross = state.cross(omega)
        forward_gain, backward_gain = state.gains(cross)
        forward, backward = forward + backward @ forward_gain.mT, backward + forward @ backward_gain.mT
        state.advance(cross)
    return ReflectionModel(power.to(x.dtype), torch.stack(reflection, -3).to(x.dtype))


def _covariance(a: Tensor, b: Tensor) -> Tensor:
    """Average a_t b_t^H over the samples."""
    return a.mT @ b.conj() / a.shape[-2]


def _ridged(covariance: Tensor, ridge: float) -> Tensor:
    channels = covariance.shape[-1]
    level = ridge / channels * covariance.diagonal(dim1=-2, dim2=-1).real.sum(-1)
    unit = torch.eye(channels, dtype=covariance.dtype, device=covariance.device)
    return symmetrize(covariance) + level[..., None, None] * unit
