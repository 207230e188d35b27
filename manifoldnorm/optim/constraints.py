"""The manifolds that a weight can be held on, by name, and the radius that each weight gets."""

from __future__ import annotations

import difflib
import math
from typing import Literal, get_args

import torch
from torch import Tensor

from manifoldnorm.linalg.spectral_norm import SpectralNormMethod
from manifoldnorm.manifolds.frames import Grassmann, Stiefel
from manifoldnorm.manifolds.matrices import MatrixManifold
from manifoldnorm.manifolds.matrix_spheres import FrobeniusSphere, Oblique
from manifoldnorm.manifolds.spectral_sphere import SpectralSphere

ManifoldName = Literal["euclidean", "frobenius", "spectral", "oblique_rows", "oblique_cols", "stiefel", "grassmann"]
SpectralEstimator = Literal["auto", "exact", "schatten", "power"]

# Above this size, and on every accelerator, products are cheaper than eigenvalues.
_LARGEST_EXACT = 512


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError, with the nearest valid spelling, unless `value` is one of `choices`."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def name_of(manifold: str | MatrixManifold | object) -> tuple[str, float | None]:
    """Return the name of a constraint, and its radius when it is given as a manifold object."""
    if isinstance(manifold, str):
        check_choice("manifold", manifold, get_args(ManifoldName))
        return manifold, None
    if isinstance(manifold, Oblique):
        name = "oblique_rows" if manifold.dim == -1 else "oblique_cols"
    else:
        names = {FrobeniusSphere: "frobenius", SpectralSphere: "spectral", Stiefel: "stiefel", Grassmann: "grassmann"}
        name = names.get(type(manifold), "")
    if not isinstance(manifold, MatrixManifold) or not name:
        raise ValueError(
            f"manifold must be one of {', '.join(get_args(ManifoldName))} or a FrobeniusSphere, SpectralSphere, "
            f"Oblique, Stiefel or Grassmann object, got {manifold!r}"
        )
    if isinstance(manifold.radius, Tensor):
        raise ValueError("a manifold given to an optimizer needs a float radius; pass radius=None to keep each norm")
    return name, manifold.radius


def build(
    name: str, radius: float | Tensor, *, sigma: SpectralEstimator = "auto", like: Tensor | None = None
) -> MatrixManifold:
    """Return the manifold called `name` with the given radii, one for each matrix of a batch."""
    if name == "frobenius":
        return FrobeniusSphere(radius)
    if name == "spectral":
        return SpectralSphere(radius, estimator=_estimator(sigma, like))
    if name in ("oblique_rows", "oblique_cols"):
        return Oblique(radius, dim=-1 if name == "oblique_rows" else -2)
    if name == "stiefel":
        return Stiefel(radius)
    if name == "grassmann":
        return Grassmann(radius)
    raise ValueError(f"{name!r} names no matrix manifold")


def _estimator(sigma: SpectralEstimator, like: Tensor | None) -> SpectralNormMethod:
    if sigma != "auto":
        return sigma
    small = like is None or (like.device.type == "cpu" and min(like.shape[-2:]) <= _LARGEST_EXACT)
    return "exact" if small else "schatten"


def mup_radius(manifold: ManifoldName, fan_out: int, fan_in: int) -> float:
    """Radius at which a constrained weight acts as maximal-update parametrisation prescribes.

    A weight of spectral norm sqrt(fan_out / fan_in) maps inputs with entries of order one to outputs with entries of
    order one. The spectral sphere, Stiefel and Grassmann manifolds get that norm; the Frobenius sphere gets the norm of
    a Gaussian matrix with that spectral norm, and so do the rows (columns) of the oblique manifold together.

    Parameters
    ----------
    manifold : str
        As in `MACRO`; "euclidean" has no radius.
    fan_out, fan_in : int
        Rows and columns of the weight.

    Examples
    --------
    >>> mup_radius("spectral", 256, 64)
    2.0
    """
    if manifold == "euclidean":
        raise ValueError("the euclidean manifold has no radius; name a constraint")
    check_choice("manifold", manifold, get_args(ManifoldName))
    return build(manifold, 1.0).mup_radius(fan_out, fan_in)


def initial_radius(name: str, matrix: Tensor, radius: float | str | None, radius_mult: float, parameter: str) -> Tensor:
    """Return the radius of one weight as a 0-d tensor: given, of maximal-update scale, or the weight's own.

    Raises
    ------
    ValueError
        Naming `parameter`, when the weight is zero or not finite, or the radius is not a positive number.
    """
    if isinstance(radius, str) and radius != "mup":
        raise ValueError(f"radius of {parameter} must be a positive number, None or 'mup', got {radius!r}")
    if isinstance(radius, (int, float)) and not (radius > 0 and math.isfinite(radius)):
        raise ValueError(
            f"radius of {parameter} must be positive and finite, got {radius}; None keeps the weight's own norm"
        )
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{parameter} has entries that are not finite; initialise it before making the optimizer")
    if not bool((matrix != 0).any()):
        raise ValueError(
            f"{parameter} is zero, so it has no nearest point on the {name} manifold; initialise it, "
            "or give it manifold='euclidean'"
        )
    manifold = build(name, 1.0)
    if radius is None:
        value = manifold.radius_of(matrix)
    else:
        fixed = manifold.mup_radius(*matrix.shape) if radius == "mup" else float(radius)
        value = torch.full((), fixed, dtype=matrix.dtype, device=matrix.device)
    return value * radius_mult
