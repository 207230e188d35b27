"""Optimizers for weights that live on a manifold."""

from manifoldnorm.optim.constraints import mup_radius
from manifoldnorm.optim.macro import MACRO, MACROOblique, MACROSpectral, MACROSphere, MACROStiefel

__all__ = ["MACRO", "MACROOblique", "MACROSpectral", "MACROSphere", "MACROStiefel", "mup_radius"]
