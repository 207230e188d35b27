"""Stationary vector signals as points of a product of manifolds: autocovariance, AR model, reflection matrices."""

from manifoldnorm.signal.autoregression import (
    AutoregressiveModel,
    ReflectionModel,
    autocovariance_from_reflection,
    autoregression_from_reflection,
    block_toeplitz,
    log_determinant,
    reflection_from_autocovariance,
    reflection_from_autoregression,
    reflection_manifold,
)
from manifoldnorm.signal.lattice import lattice_reflection
from manifoldnorm.signal.simulate import simulate_autoregression

__all__ = [
    "AutoregressiveModel",
    "ReflectionModel",
    "autocovariance_from_reflection",
    "autoregression_from_reflection",
    "block_toeplitz",
    "lattice_reflection",
    "log_determinant",
    "reflection_from_autocovariance",
    "reflection_from_autoregression",
    "reflection_manifold",
    "simulate_autoregression",
]
