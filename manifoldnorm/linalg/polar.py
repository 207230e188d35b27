"""The polar factor of rectangular matrices (the matrix sign of optimizers): by polynomials, or exactly with gradients.

For a thin singular value decomposition X = U diag(s) V^H the polar factor is U V^H, over the non-zero singular values.
It is the direction of steepest ascent in the spectral norm and the nearest matrix with orthonormal columns (or rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from manifoldnorm.linalg.functions import constant_under_compile
from manifoldnorm.linalg.precision import without_autocast, working_dtype
from manifoldnorm.linalg.products import add_product, gram_matrix, product
from manifoldnorm.linalg.stable import safe_norm
from manifoldnorm.linalg.symmetric import eigh, symmetrize

MsignMethod = Literal["newton_schulz5", "polar_express", "eigh", "svd"]
Quintic = tuple[float, float, float]

NEWTON_SCHULZ_COEFFICIENTS: Quintic = (3.4445, -4.7750, 2.0315)
"""Jordan's quintic a x + b x^3 + c x^5, steepest at zero; the one that `torch.optim.Muon` iterates."""

_PADE_LIMIT: Quintic = (15 / 8, -10 / 8, 3 / 8)


def msign(
    x: Tensor,
    method: MsignMethod = "newton_schulz5",
    *,
    steps: int | None = None,
    dtype: torch.dtype | None = None,
    eps: float | None = None,
) -> Tensor:
    r"""Polar factor of each matrix of a batch, also called the matrix sign.

    Parameters
    ----------
    x : Tensor
        Shape (..., m, n), real or complex; tall, wide, rank-deficient or zero (whose factor is zero).
    method : {"newton_schulz5", "polar_express", "eigh", "svd"}
        The first two are odd polynomials that need matrix products only. "newton_schulz5" moves the singular values to
        about 0.7 .. 1.2, as `torch.optim.Muon` does (equal to it bit for bit when `eps=1e-7`). "polar_express"
        converges; 8 steps in float32 are accurate to 2e-4 for condition numbers up to 1e3. "eigh" (of the Gram matrix,
        in float64) and "svd" are exact, drop singular values that are rounding noise, and have exact first and second
        derivatives in the matrices of constant rank.
    steps : int, optional
        Polynomial steps: 5 for "newton_schulz5", 8 for "polar_express". Refused by the exact methods.
    dtype : torch.dtype, optional
        What the iteration runs in: bfloat16 for "newton_schulz5" (complex input: its own dtype), float32 or the input's
        for "polar_express", float64 for "eigh", float64 on the CPU for "svd". In bfloat16 the null space of a
        rank-deficient matrix fills with noise of order one; run those in float32.
    eps : float, optional
        For the polynomials: lower bound on the Frobenius norm that the matrix is divided by, so that matrices smaller
        than `eps` shrink to zero. By default no matrix is too small or too large.

    Returns
    -------
    Tensor
        The shape of `x`. Exact methods return the dtype of `x`; polynomials return the dtype they ran in, which
        optimizers add to a weight without a second rounding. A matrix that is not finite gives NaN, alone in its batch.

    Raises
    ------
    ValueError
        For fewer than two dimensions, an unknown method, `steps` below one or given to an exact method.
    TypeError
        For integer input.

    References
    ----------
    K. Jordan, "Muon" (2024), for "newton_schulz5". N. Amsel et al., "The Polar Express" (arXiv 2505.16932),
    algorithm 1, for "polar_express".

    Examples
    --------
    >>> msign(torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.0, 0.0]]), "svd")
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.]])
    """
    _check_matrices(x)
    if method not in get_args(MsignMethod):
        raise ValueError(f"method must be one of {', '.join(get_args(MsignMethod))}, got {method!r}")
    if method in ("eigh", "svd"):
        if steps is not None:
            raise ValueError(f"steps applies to the polynomial methods, and {method!r} is not iterative; leave it out")
        return _exact_polar_factor(x, method, dtype)
    steps = steps if steps is not None else {"newton_schulz5": 5, "polar_express": 8}[method]
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if method == "newton_schulz5":
        default = x.dtype if x.is_complex() else torch.bfloat16
        return polynomial_msign(x, [NEWTON_SCHULZ_COEFFICIENTS] * steps, dtype=dtype or default, eps=eps)
    default = torch.promote_types(x.dtype, torch.float32)
    return polynomial_msign(x, _polar_express_constants(steps), dtype=dtype or default, eps=eps, prescale=1.01)


def polynomial_msign(
    x: Tensor,
    coefficients: Sequence[Quintic],
    *,
    dtype: torch.dtype,
    eps: float | None = None,
    prescale: float = 1.0,
) -> Tensor:
    """Apply a composition of odd quintics to the singular values of X / (prescale |X|_F).

    Parameters
    ----------
    x : Tensor
        Shape (..., m, n).
    coefficients : sequence of (float, float, float)
        For each step (a, b, c) of the polynomial a s + b s^3 + c s^5.
    dtype : torch.dtype
        What the products run in, and the dtype of the result.
    eps : float, optional
        Lower bound on the norm; by default any non-zero matrix is scaled, whatever its size.
    prescale : float
        Extra factor on the norm that keeps rounding from pushing a singular value above one.

    Returns
    -------
    Tensor
        Shape (..., m, n), of dtype `dtype`.

    Examples
    --------
    >>> polynomial_msign(torch.eye(2), [(1.5, -0.5, 0.0)] * 8, dtype=torch.float64)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    tall = x.shape[-2] > x.shape[-1]
    with without_autocast(x):
        if eps is None:
            norm = safe_norm(x, (-2, -1), keepdim=True)
            x = x / torch.where(norm == 0, torch.ones_like(norm), norm)
        y = x.to(dtype).reshape(-1, *x.shape[-2:])
        norm = torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True)
        y = y / (norm.clamp(min=eps or torch.finfo(dtype).tiny) * prescale)
        for a, b, c in coefficients:
            # Multiplying from the shorter side: a transposed result would slow every element-wise operation after it.
            gram = product(y.mH, y) if tall else product(y, y.mH)
            polynomial = add_product(gram, gram, gram, beta=b, alpha=c)
            y = add_product(y, y, polynomial, beta=a) if tall else add_product(y, polynomial, y, beta=a)
        return y.reshape(x.shape)


@constant_under_compile
def _polar_express_constants(steps: int) -> tuple[Quintic, ...]:
    return polar_express_coefficients(steps)


@lru_cache(maxsize=32)
def polar_express_coefficients(
    steps: int, *, lower: float = 1e-3, cushion: float = 0.02407327424182761, safety: float = 1.01
) -> tuple[Quintic, ...]:
    """Minimax quintics that drive singular values in [lower, 1] to one as fast as any composition of quintics can.

    Each step is the best uniform approximation of one by a s + b s^3 + c s^5 on the interval that the previous steps
    left, found by the Remez exchange. A cushion keeps the first steps from being flat near the lower end.

    Parameters
    ----------
    steps : int
        Number of quintics.
    lower : float
        Smallest singular value, relative to the largest, that is to converge.
    cushion : float
        Lower end of the interval of the fit, relative to its upper end, at least.
    safety : float
        The polynomials are those of s / safety, so that rounding does not carry a value out of the interval; steps that
        have converged are left alone.

    Returns
    -------
    tuple of (float, float, float)

    References
    ----------
    N. Amsel, D. Persson, C. Musco, R. Gower, "The Polar Express" (arXiv 2505.16932), section 3.

    Examples
    --------
    >>> [round(a, 4) for a, _, _ in polar_express_coefficients(3, safety=1.0)]
    [8.2872, 4.1071, 3.9487]
    """
    if not 0 < lower < 1:
        raise ValueError(f"lower must lie between 0 and 1, got {lower}")
    coefficients = []
    upper = 1.0
    for _ in range(steps):
        quintic = _minimax_quintic(max(lower, cushion * upper), upper)
        centre = 2 / (_evaluate(quintic, lower) + _evaluate(quintic, upper))
        a, b, c = (centre * value for value in quintic)
        lower = min(_evaluate((a, b, c), lower), 1.0)
        upper = 2 - lower
        converged = math.isclose(a, _PADE_LIMIT[0], rel_tol=1e-8)
        coefficients.append(_PADE_LIMIT if converged else (a / safety, b / safety**3, c / safety**5))
    return tuple(coefficients)


def _evaluate(quintic: Quintic, s: float) -> float:
    a, b, c = quintic
    return s * (a + s**2 * (b + s**2 * c))


def _minimax_quintic(lower: float, upper: float) -> Quintic:
    """Best odd quintic for the constant one on [lower, upper]: the error equioscillates at the ends and two extrema."""
    if lower / upper >= 1 - 5e-6:
        a, b, c = _PADE_LIMIT
        return a / upper, b / upper**3, c / upper**5
    first, second = (3 * lower + upper) / 4, (lower + 3 * upper) / 4
    error, previous = math.inf, 0.0
    for _ in range(100):
        nodes = torch.tensor([lower, first, second, upper], dtype=torch.float64, device="cpu")
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64, device="cpu")
        system = torch.stack((nodes, nodes**3, nodes**5, signs), dim=1)
        a, b, c, error = torch.linalg.solve(system, torch.ones_like(nodes)).tolist()
        if abs(error - previous) <= 1e-15:
            break
        previous = error
        root = math.sqrt(9 * b * b - 20 * a * c)
        first, second = (math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1))
    return a, b, c


def polar_factor_nearby(x: Tensor, *, bound: float, size: float | Tensor = 1.0) -> Tensor:
    """Return `size` times the polar factor of matrices that are nearly `size` times one with orthonormal columns.

    For wide matrices the rows count. The binomial series of (X^H X / size^2)^(-1/2): one Gram matrix, a few products of
    its size and one product with X, cheaper than any general method. The order of the series follows from `bound`.
    Where X is further from orthonormal than that the result is not the polar factor, but its singular values lie
    between zero and `size` and are closer to it, in proportion, than those of X: repeated application converges.

    Parameters
    ----------
    x : Tensor
        Shape (..., m, n), float32 or float64.
    bound : float
        Upper bound, below 0.5, on the eigenvalues of X^H X / size^2 - I in absolute value. Up to 2e-3 the products that
        correct float32 input run in bfloat16, whose rounding is then below that of float32.
    size : float or Tensor
        Singular values of the result; a tensor broadcasts with the shape of `x`.

    Returns
    -------
    Tensor
        Shape and dtype of `x`.

    Examples
    --------
    >>> x = torch.eye(3, 2) + 0.01 * torch.ones(3, 2)
    >>> y = polar_factor_nearby(x, bound=0.1)
    >>> torch.allclose(y.mT @ y, torch.eye(2), atol=1e-6)
    True
    """
    if not 0 <= bound < 0.5:
        raise ValueError(f"bound must lie in [0, 0.5), got {bound}; use msign(x, 'eigh') further from orthonormal")
    with without_autocast(x):
        wide = x.shape[-2] < x.shape[-1]
        gram = gram_matrix(x.mH if wide else x)
        width = gram.shape[-1]
        identity = torch.eye(width, dtype=x.dtype, device=x.device)
        excess = gram * size**-2 - identity
        distance = torch.linalg.vector_norm(excess, dim=(-2, -1), keepdim=True)
        near = distance <= 1.5 * bound * math.sqrt(width) + 1e-3
        # Matrices that break the promise are scaled into the unit ball, where a truncated series is below the full one;
        # the largest row sum bounds the largest eigenvalue, closely so near the identity.
        largest = 1 + excess.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)
        scale = torch.where(near, torch.ones_like(largest), 1 / largest)
        reduced = x.dtype == torch.float32 and bound <= 2e-3
        if reduced:
            # What bfloat16 rounds is the rest after the mean of the eigenvalues, which the last scaling makes one.
            mean = 1 + excess.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            scale = torch.where(near, 1 / mean, scale)
        excess = torch.addcmul(excess * scale, identity, scale - 1)
        excess = excess.to(torch.bfloat16) if reduced else excess
        coefficients = _inverse_square_root_series(2 * bound if reduced else bound, torch.finfo(x.dtype).eps)
        correction = coefficients[-1] * excess
        for coefficient in reversed(coefficients[:-1]):
            correction = add_product(excess, excess, correction, beta=coefficient)
        near_x = x.to(correction.dtype)
        corrected = x + (product(correction, near_x) if wide else product(near_x, correction))
        return corrected * scale.sqrt()


def _inverse_square_root_series(bound: float, tolerance: float) -> list[float]:
    """Return c_1, c_2, ... of (1 + e)^(-1/2) = 1 + c_1 e + c_2 e^2 + ... up to a remainder below the tolerance."""
    coefficients = [-0.5]
    while abs(coefficients[-1]) * bound ** (len(coefficients) + 1) / (1 - bound) > tolerance / 4:
        order = len(coefficients)
        coefficients.append(-coefficients[-1] * (order + 0.5) / (order + 1))
    return coefficients


def _exact_polar_factor(x: Tensor, method: str, dtype: torch.dtype | None) -> Tensor:
    if dtype is None:
        wide = torch.complex128 if x.is_complex() else torch.float64
        dtype = wide if method == "eigh" else working_dtype(x)
    precision = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    with without_autocast(x):
        tall = x if x.shape[-2] >= x.shape[-1] else x.mH
        factor = cast(Tensor, _PolarFactor.apply(tall.to(dtype), method, 10 * precision)).to(x.dtype)
    return factor if x.shape[-2] >= x.shape[-1] else factor.mH


class _PolarFactor(torch.autograd.Function):
    """D = X H^+ for tall X, H = (X^H X)^(1/2).

    With A = D^H G the gradient is D K + (I - D D^H) G H^+, where H K + K H = A - A^H. It divides by sums of singular
    values, never by their differences.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, method: str, tolerance: float) -> Tensor:
        norm = safe_norm(x, (-2, -1), keepdim=True)
        usable = torch.isfinite(norm) & (norm > 0)
        scaled = torch.where(usable, x / torch.where(usable, norm, torch.ones_like(norm)), torch.zeros_like(x))
        if method == "eigh":
            # All finite by now, so that nothing needs to be looked at.
            values, vectors = torch.linalg.eigh(scaled.mH @ scaled)
            singular = values.clamp(min=0).sqrt().unsqueeze(-2)
            # The Gram matrix squares the condition number: what lies below the root of its rounding error is noise.
            tolerance = max(tolerance, 2 * math.sqrt(x.shape[-1] * torch.finfo(x.dtype).eps))
            kept, inverse = _inverse_above(singular, tolerance)
            factor = scaled @ (vectors * inverse) @ vectors.mH
        else:
            left, singular, right = torch.linalg.svd(scaled, full_matrices=False)
            kept, _ = _inverse_above(singular.unsqueeze(-2), tolerance)
            factor = (left * kept) @ right
        return torch.where(torch.isfinite(norm), factor, torch.full_like(factor, torch.nan))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.tolerance = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        x, factor = ctx.saved_tensors
        root = symmetrize(factor.mH @ x)
        along = factor.mH @ gradient
        identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand_as(root)
        skew = _Lyapunov.apply(root, along - along.mH, ctx.tolerance)
        inverse = _Lyapunov.apply(root, 2 * identity, ctx.tolerance)
        return factor @ skew + (gradient - factor @ along) @ inverse, None, None


def _inverse_above(values: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Mark and invert the values above `tolerance` times the largest one along the last dimension."""
    kept = values > tolerance * values.amax(-1, keepdim=True)
    return kept, torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), torch.zeros_like(values))


class _Lyapunov(torch.autograd.Function):
    """Solve H K + K H = R for Hermitian H >= 0; the part of R on the null space of H is dropped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(root: Tensor, right: Tensor, tolerance: float) -> Tensor:
        values, vectors = eigh(root)
        sums = (values.unsqueeze(-1) + values.unsqueeze(-2)).flatten(-2)
        _, inverse = _inverse_above(sums, tolerance)
        rotated = vectors.mH @ right @ vectors
        return vectors @ (rotated * inverse.unflatten(-1, rotated.shape[-2:])) @ vectors.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        root, _, ctx.tolerance = inputs
        ctx.save_for_backward(root, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        root, solution = ctx.saved_tensors
        grad_right = _Lyapunov.apply(root, gradient, ctx.tolerance)
        grad_root = -symmetrize(grad_right @ solution.mH + solution.mH @ grad_right)
        return grad_root, grad_right, None


def _check_matrices(x: Tensor) -> None:
    if x.ndim < 2:
        raise ValueError(f"x must hold matrices of shape (..., m, n), got shape {tuple(x.shape)}")
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"x must be floating point or complex, got {x.dtype}; convert it first")
