"""Numerics on batched matrices and vectors; nothing here knows what a manifold is."""

from manifoldnorm.linalg.cholesky import (
    cholesky,
    cholesky_frechet,
    exp_cholesky,
    half_lower,
    inverse_triangular,
    log_cholesky,
)
from manifoldnorm.linalg.polar import msign, polar_express_coefficients
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
from manifoldnorm.linalg.spectral_power import log_moments, powm, scaled_power
from manifoldnorm.linalg.stable import atanhc, safe_norm, safe_sqrt, sinc, sinhc, x_coth
from manifoldnorm.linalg.symmetric import (
    Eigendecomposition,
    clamp_eigenvalues,
    eigh,
    expm,
    frechet,
    inv_sqrtm,
    logm,
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
    "exp_cholesky",
    "expm",
    "frechet",
    "half_lower",
    "inv_sqrtm",
    "inverse_triangular",
    "log_cholesky",
    "log_moments",
    "logm",
    "msign",
    "polar_express_coefficients",
    "powm",
    "safe_norm",
    "safe_sqrt",
    "scaled_power",
    "sinc",
    "sinhc",
    "spectral",
    "sqrtm",
    "symmetrize",
    "x_coth",
]
