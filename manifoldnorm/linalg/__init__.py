"""Numerics on batched matrices and vectors; nothing here knows what a manifold is."""

from manifoldnorm.linalg.cholesky import cholesky, cholesky_frechet, half_lower, inverse_triangular
from manifoldnorm.linalg.spectral_functions import (
    ClampMin,
    Exp,
    InverseSqrt,
    Log,
    Power,
    SmoothFunction,
    SpectralFunction,
    Sqrt,
)
from manifoldnorm.linalg.stable import atanhc, safe_norm, safe_sqrt, sinc, sinhc, x_coth
from manifoldnorm.linalg.symmetric import (
    Eigendecomposition,
    clamp_eigenvalues,
    eigh,
    expm,
    frechet,
    inv_sqrtm,
    logm,
    powm,
    spectral,
    sqrtm,
    symmetrize,
)

__all__ = [
    "ClampMin",
    "Eigendecomposition",
    "Exp",
    "InverseSqrt",
    "Log",
    "Power",
    "SmoothFunction",
    "SpectralFunction",
    "Sqrt",
    "atanhc",
    "cholesky",
    "cholesky_frechet",
    "clamp_eigenvalues",
    "eigh",
    "expm",
    "frechet",
    "half_lower",
    "inv_sqrtm",
    "inverse_triangular",
    "logm",
    "powm",
    "safe_norm",
    "safe_sqrt",
    "sinc",
    "sinhc",
    "spectral",
    "sqrtm",
    "symmetrize",
    "x_coth",
]
