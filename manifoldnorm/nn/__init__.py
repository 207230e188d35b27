"""Layers for points on manifolds."""

from manifoldnorm.nn.batchnorm import DomainBatchNorm, LieBatchNorm, RiemannianBatchNorm
from manifoldnorm.nn.synchronize import convert_sync_batchnorm

__all__ = ["DomainBatchNorm", "LieBatchNorm", "RiemannianBatchNorm", "convert_sync_batchnorm"]
