"""Optimizers for weights that live on a manifold."""

from manifoldnorm.optim.combined import MACROWithAdamW
from manifoldnorm.optim.constraints import mup_radius
from manifoldnorm.optim.diagnostics import (
    constraint_error,
    project_to_constraint_,
    rotation_angle,
    set_radius,
    stationarity,
)
from manifoldnorm.optim.groups import Route, macro_param_groups, route_parameters, routing_table
from manifoldnorm.optim.macro import MACRO, MACROOblique, MACROSpectral, MACROSphere, MACROStiefel

__all__ = [
    "MACRO",
    "MACROOblique",
    "MACROSpectral",
    "MACROSphere",
    "MACROStiefel",
    "MACROWithAdamW",
    "Route",
    "constraint_error",
    "macro_param_groups",
    "mup_radius",
    "project_to_constraint_",
    "rotation_angle",
    "route_parameters",
    "routing_table",
    "set_radius",
    "stationarity",
]
