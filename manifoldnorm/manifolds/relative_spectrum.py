"""The spectrum of one positive definite matrix relative to another, right also where both are ill-conditioned."""

from __future__ import annotations

import torch
from torch import Tensor

from manifoldnorm.linalg import Eigendecomposition, cholesky, eigh
from manifoldnorm.linalg.functions import may_look_at

# Below this share of the largest eigenvalue an eigenvalue has lost more than six digits of sixteen.
_LOST = 1e-6


def relative_eigh(inverse: Tensor, x: Tensor, whitened: Tensor) -> Eigendecomposition:
    """Decompose W = L^-1 x L^-H, with its small eigenvalues as right as its large ones.

    A symmetric eigensolver leaves an error of the order of eps times the largest eigenvalue in all of them: for two
    5 x 5 matrices of condition 1e10 logarithms are wrong by per cents, or those of negative numbers. The eigenvalues
    are the squared singular values of L^-1 chol(x), which span half as many orders of magnitude and lose half as many
    digits. They take their place in the elements that need it, on the CPU; elsewhere looking would cost a
    synchronisation.

    Parameters
    ----------
    inverse : Tensor
        L^-1 for any L L^H, the other matrix, shape (..., n, n), real or complex.
    x : Tensor
        Positive definite matrices, broadcastable with `inverse`.
    whitened : Tensor
        W.

    Returns
    -------
    Eigendecomposition
        Of W, without gradient, as `linalg.eigh` gives it.
    """
    values, vectors = eigh(whitened)
    lost = values[..., 0] < _LOST * values[..., -1]
    if not may_look_at(lost) or not bool(lost.any()):
        return Eigendecomposition(values, vectors)
    with torch.no_grad():
        n = whitened.shape[-1]
        rows = torch.nonzero(lost.reshape(-1)).squeeze(-1)
        factor, points = (a.expand(whitened.shape).reshape(-1, n, n)[rows].to(vectors.dtype) for a in (inverse, x))
        root = factor @ cholesky(points)
        # What has no Cholesky factor is not positive definite, which the eigenvalues say as they are.
        usable = torch.isfinite(root).flatten(-2).all(-1)
        left, roots, _ = torch.linalg.svd(root[usable])
        flat_values, flat_vectors = values.reshape(-1, n).clone(), vectors.reshape(-1, n, n).clone()
        flat_values[rows[usable]], flat_vectors[rows[usable]] = roots.square().flip(-1), left.flip(-1)
    return Eigendecomposition(flat_values.view(values.shape), flat_vectors.view(vectors.shape))
