"""Poincaré networks that commute with quarter turns (C4) and reflections (D4) of the image.

Features are log coordinates of hyperbolic points, shape (B, C, |G|, H, W): axis 1 is the vector, axis 2 the
orientation. escnn is only needed by `manifoldnorm.equivariant.escnn`, which is not imported here.
"""

from manifoldnorm.equivariant.convolution import PoincareGroupConv2d, PoincareLiftingConv2d
from manifoldnorm.equivariant.groups import (
    CyclicGroup4,
    DihedralGroup4,
    PlanarGroup,
    TrivialGroup,
    group_filters,
    lift_filters,
)
from manifoldnorm.equivariant.layers import GlobalPool, GroupPool, JointOrientationBatchNorm2d, MidpointPool2d
from manifoldnorm.equivariant.resnet import EquivariantPoincareResNet, PoincareBasicBlock
from manifoldnorm.equivariant.sizes import window_overhang
from manifoldnorm.nn.curvature import Curvature
from manifoldnorm.nn.hyperbolic import FromBall, FromEuclidean, MobiusResidual, PoincareMLR, PoincareReLU, ToBall
from manifoldnorm.nn.hyperbolic_batchnorm import recalibrate
from manifoldnorm.testing.equivariance import EquivarianceReport, check_equivariance

__all__ = [
    "Curvature",
    "CyclicGroup4",
    "DihedralGroup4",
    "EquivarianceReport",
    "EquivariantPoincareResNet",
    "FromBall",
    "FromEuclidean",
    "GlobalPool",
    "GroupPool",
    "JointOrientationBatchNorm2d",
    "MidpointPool2d",
    "MobiusResidual",
    "PlanarGroup",
    "PoincareBasicBlock",
    "PoincareGroupConv2d",
    "PoincareLiftingConv2d",
    "PoincareMLR",
    "PoincareReLU",
    "ToBall",
    "TrivialGroup",
    "check_equivariance",
    "group_filters",
    "lift_filters",
    "recalibrate",
    "window_overhang",
]
