"""The one-to-one maps between autocovariances, autoregressive models and reflection matrices of vector signals.

For a stationary complex signal x_t of d channels let R_k = E[x_t x_(t-k)^H]. The block-Levinson recursion (Whittle,
Wiggins and Robinson) with Hermitian square roots turns R_0, ..., R_M into the power P = R_0 and M reflection matrices
Omega_l with singular values below one; the block Toeplitz matrix of the R_k is positive definite exactly when they are.
A product of one `HPD` and M `MatrixBall` factors is thus a chart of all such signals. For one channel the classical
reflection coefficients are mu_l = -Omega_l.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manifoldnorm.linalg import inv_sqrtm, sqrtm, symmetrize
from manifoldnorm.linalg.precision import working_dtype
from manifoldnorm.linalg.singular import svdvals
from manifoldnorm.linalg.symmetric import eigh
from manifoldnorm.manifolds.checks import default_tolerance, require_tensor
from manifoldnorm.manifolds.complex_points import mask_failed
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.product import Product
from manifoldnorm.manifolds.siegel import MatrixBall


class ReflectionModel(NamedTuple):
    """Power (..., d, d), Hermitian positive definite, and reflection matrices (..., M, d, d) in the matrix ball."""

    power: Tensor
    reflection: Tensor


class AutoregressiveModel(NamedTuple):
    """Coefficients A_1, ..., A_M of shape (..., M, d, d) and innovation covariance E (..., d, d).

    The signal is x_t = -sum_k A_k x_(t-k) + e_t with E[e_t e_t^H] = E.
    """

    coefficients: Tensor
    innovation: Tensor


class Recursion:
    """State of the block-Levinson recursion: forward and backward prediction filters and error covariances."""

    def __init__(self, power: Tensor) -> None:
        unit = torch.eye(power.shape[-1], dtype=power.dtype, device=power.device).expand_as(power)
        self.forward, self.backward = [unit], [unit]
        self.forward_error = self.backward_error = power

    def normalized(self, cross: Tensor) -> Tensor:
        """Turn the cross covariance of the prediction errors into the reflection matrix E_f^-1/2 cross E_b^-1/2."""
        return inv_sqrtm(self.forward_error) @ cross @ inv_sqrtm(self.backward_error)

    def cross(self, reflection: Tensor) -> Tensor:
        """Invert `normalized`."""
        return sqrtm(self.forward_error) @ reflection @ sqrtm(self.backward_error)

    def gains(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Return K_f = -cross E_b^-1 and K_b = -cross^H E_f^-1."""
        forward = -torch.linalg.solve(self.backward_error, cross, left=False)
        return forward, -torch.linalg.solve(self.forward_error, cross.mH, left=False)

    def advance(self, cross: Tensor) -> None:
        """Raise the order by one."""
        forward_gain, backward_gain = self.gains(cross)
        zero = torch.zeros_like(cross)
        padded, shifted = [*self.forward, zero], [zero, *self.backward]
        # The backward filter is kept by lag, b_t = sum_k B_k x_(t-k), so that raising the order delays it.
        self.forward = [a + forward_gain @ b for a, b in zip(padded, shifted)]
        self.backward = [b + backward_gain @ a for a, b in zip(padded, shifted)]
        self.forward_error = symmetrize(self.forward_error + forward_gain @ cross.mH)
        self.backward_error = symmetrize(self.backward_error + backward_gain @ cross)


def _complex(x: Tensor, name: str, ndim: int, shape: str) -> Tensor:
    require_tensor(x, name)
    if not x.is_complex():
        raise TypeError(f"{name} must be complex, got {x.dtype}; convert it with {name}.to(torch.complex128)")
    if x.ndim < ndim or x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
    return x.to(working_dtype(x))


def _positive(x: Tensor, dtype: torch.dtype, name: str, meaning: str) -> Tensor:
    asymmetry = (x - x.mH).detach().abs().flatten(-2).amax(-1)
    bound = default_tolerance(dtype) * x.detach().abs().flatten(-2).amax(-1)
    message = f"{name}{{index}} must be {meaning}, so Hermitian, but max |x - x^H| is {{amount}}"
    x = mask_failed(x, asymmetry > bound, asymmetry, message)
    smallest = eigh(x).values[..., 0]
    message = f"{name}{{index}} must be {meaning}, but its smallest eigenvalue is {{amount}}"
    return mask_failed(symmetrize(x), ~(smallest > 0), smallest, message)


def _contraction(omega: Tensor, name: str, what: str) -> Tensor:
    largest = svdvals(omega)[..., 0]
    message = f"{name}{{index}} must be {what} has largest singular value {{amount}}"
    return mask_failed(omega, ~(largest < 1), largest, message)


def reflection_from_autocovariance(r: Tensor) -> ReflectionModel:
    """Compute power and reflection matrices of an autocovariance.

    Parameters
    ----------
    r : Tensor
        R_0, ..., R_M, complex, shape (..., M + 1, d, d), with R_k = E[x_t x_(t-k)^H].

    Returns
    -------
    ReflectionModel
        Of the dtype of `r`; differentiable.

    Raises
    ------
    ValueError
        When the block Toeplitz matrix of `r` is not positive definite; names the batch element, the order at which it
        stops being so, and the eigenvalue or singular value.
    TypeError
        For a real tensor.

    Examples
    --------
    >>> r = torch.tensor([1.0, 0.5, 0.25], dtype=torch.complex128).reshape(3, 1, 1)
    >>> reflection_from_autocovariance(r).reflection.flatten().real
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    lags = _complex(r, "r", 3, "(..., M + 1, d, d)").unbind(-3)
    power = _positive(lags[0], r.dtype, "r", "an autocovariance whose lag 0 is positive definite")
    state, reflection = Recursion(power), []
    for order in range(1, len(lags)):
        cross = sum((a @ lags[order - k] for k, a in enumerate(state.forward)), torch.zeros_like(power))
        what = f"a positive definite autocovariance, but its reflection matrix of order {order}"
        reflection.append(_contraction(state.normalized(cross), "r", what))
        state.advance(cross)
    stacked = torch.stack(reflection, -3) if reflection else power.new_zeros(*power.shape[:-2], 0, *power.shape[-2:])
    return ReflectionModel(power.to(r.dtype), stacked.to(r.dtype))


def _walk(power: Tensor, reflection: Tensor) -> tuple[Recursion, list[Tensor]]:
    """Run the recursion forwards from reflection matrices; returns the final state and R_0, ..., R_M."""
    p = _complex(power, "power", 2, "(..., d, d)")
    omega = _complex(reflection, "reflection", 3, "(..., M, d, d)")
    if omega.shape[-1] != p.shape[-1]:
        raise ValueError(
            f"power and reflection must have the same number of channels, got {p.shape[-1]} and {omega.shape[-1]}"
        )
    batch = torch.broadcast_shapes(p.shape[:-2], omega.shape[:-3])
    p, omega = p.expand(*batch, *p.shape[-2:]), omega.expand(*batch, *omega.shape[-3:])
    p = _positive(p, power.dtype, "power", "positive definite")
    state, lags = Recursion(p), [p]
    for order, matrix in enumerate(omega.unbind(-3), start=1):
        matrix = _contraction(matrix, "reflection", f"inside the matrix ball, but the matrix of order {order}")
        cross = state.cross(matrix)
        known = sum((a @ lags[order - k] for k, a in enumerate(state.forward) if k), torch.zeros_like(p))
        lags.append(cross - known)
        state.advance(cross)
    return state, lags


def autocovariance_from_reflection(power: Tensor, reflection: Tensor) -> Tensor:
    """Invert `reflection_from_autocovariance`.

    Parameters
    ----------
    power : Tensor
        Hermitian positive definite, shape (..., d, d).
    reflection : Tensor
        Singular values below one, shape (..., M, d, d).

    Returns
    -------
    Tensor
        R_0, ..., R_M, shape (..., M + 1, d, d).

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> autocovariance_from_reflection(one, 0.5 * one[None]).flatten().real
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    _, lags = _walk(power, reflection)
    return torch.stack(lags, -3).to(power.dtype)


def autoregression_from_reflection(power: Tensor, reflection: Tensor) -> AutoregressiveModel:
    """Compute the autoregressive model of order M with given power and reflection matrices; it is stable.

    Parameters
    ----------
    power, reflection : Tensor
        As for `autocovariance_from_reflection`.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> model = autoregression_from_reflection(one, 0.5 * one[None])
    >>> model.coefficients.item().real, model.innovation.item().real
    (-0.5, 0.75)
    """
    state, _ = _walk(power, reflection)
    filters = state.forward[1:]
    coefficients = torch.stack(filters, -3) if filters else torch.zeros_like(reflection)
    return AutoregressiveModel(coefficients.to(power.dtype), state.forward_error.to(power.dtype))


def reflection_from_autoregression(coefficients: Tensor, innovation: Tensor) -> ReflectionModel:
    """Invert `autoregression_from_reflection`: solve the Yule-Walker equations for the autocovariance first.

    Parameters
    ----------
    coefficients : Tensor
        A_1, ..., A_M, complex, shape (..., M, d, d), M >= 1.
    innovation : Tensor
        Hermitian positive definite, shape (..., d, d).

    Raises
    ------
    ValueError
        When the model is not stable (its autocovariance is then not positive), naming the batch element.

    Notes
    -----
    Solves a linear system with (M d)^2 unknowns: for small orders and channel counts.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> reflection_from_autoregression(-0.5 * one[None], 0.75 * one).reflection.flatten().real
    tensor([0.5000], dtype=torch.float64)
    """
    a = _complex(coefficients, "coefficients", 3, "(..., M, d, d)")
    e = _complex(innovation, "innovation", 2, "(..., d, d)")
    e = _positive(e, innovation.dtype, "innovation", "positive definite")
    order, d = a.shape[-3], a.shape[-1]
    if order == 0:
        raise ValueError("coefficients must hold at least one matrix, got none")
    batch = torch.broadcast_shapes(a.shape[:-3], e.shape[:-2])
    a, e = a.expand(*batch, order, d, d), e.expand(*batch, d, d)
    size = order * d
    top = -a.movedim(-3, -2).reshape(*batch, d, size)
    below = torch.eye(size - d, size, dtype=a.dtype, device=a.device).expand(*batch, -1, -1)
    companion = torch.cat((top, below), -2)
    noise = torch.nn.functional.pad(e, (0, size - d, 0, size - d))
    kron = companion[..., :, None, :, None] * companion.conj()[..., None, :, None, :]
    system = torch.eye(size * size, dtype=a.dtype, device=a.device) - kron.reshape(*batch, size * size, size * size)
    state = torch.linalg.solve(system, noise.reshape(*batch, size * size)).reshape(*batch, size, size)
    lags = list(state[..., :d, :].unflatten(-1, (order, d)).movedim(-2, -3).unbind(-3))
    lags[0] = symmetrize(lags[0])
    lags.append(-sum((a[..., k, :, :] @ lags[order - 1 - k] for k in range(order)), torch.zeros_like(e)))
    power, reflection = reflection_from_autocovariance(torch.stack(lags, -3))
    return ReflectionModel(power.to(coefficients.dtype), reflection.to(coefficients.dtype))


def block_toeplitz(r: Tensor) -> Tensor:
    """Return the Hermitian block Toeplitz matrix E[X X^H] of X = (x_t, x_(t-1), ...), block (i, j) being R_(j-i).

    Parameters
    ----------
    r : Tensor
        R_0, ..., R_M, shape (..., M + 1, d, d).

    Returns
    -------
    Tensor
        Shape (..., (M + 1) d, (M + 1) d).
    """
    lags = r.unbind(-3)
    rows = [
        torch.cat([lags[j - i] if j >= i else lags[i - j].mH for j in range(len(lags))], -1) for i in range(len(lags))
    ]
    return torch.cat(rows, -2)


def log_determinant(power: Tensor, reflection: Tensor) -> Tensor:
    """Compute log det of the block Toeplitz matrix: n log det P + sum (n - l) log det(I - W_l W_l^H), n = M + 1.

    W_l are the reflection matrices.

    The negative of it is the Kähler potential whose metric `reflection_manifold` carries.
    """
    n = reflection.shape[-3] + 1
    unit = torch.eye(power.shape[-1], dtype=power.dtype, device=power.device)
    gaps = torch.linalg.slogdet(unit - reflection @ reflection.mH).logabsdet
    weights = torch.arange(n - 1, 0, -1, dtype=gaps.dtype, device=gaps.device)
    return n * torch.linalg.slogdet(power).logabsdet + (weights * gaps).sum(-1)


def reflection_manifold(channels: int, order: int) -> Product:
    """Return the Kähler manifold of autoregressive models: HPD x MatrixBall^order with weights n, n - 1, ..., 1.

    Its points are `manifold.pack(power, *reflection.unbind(-3))`; n = order + 1. The weights do not change means or
    geodesics, but distances and the total variance.

    Parameters
    ----------
    channels : int
        Number d of channels.
    order : int
        Order M of the model.

    Examples
    --------
    >>> reflection_manifold(2, 3).weights
    (4.0, 3.0, 2.0, 1.0)
    """
    if channels < 1 or order < 1:
        raise ValueError(f"channels and order must be at least 1, got {channels} and {order}")
    shape = (channels, channels)
    balls = [(MatrixBall(), shape) for _ in range(order)]
    return Product((HPD(), shape), *balls, weights=[float(n) for n in range(order + 1, 0, -1)])
