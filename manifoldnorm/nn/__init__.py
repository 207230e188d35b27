"""Layers for points on manifolds."""

from manifoldnorm.nn.batchnorm import LieBatchNorm, RiemannianBatchNorm
from manifoldnorm.nn.domain_batchnorm import DomainBatchNorm
from manifoldnorm.nn.synchronize import convert_sync_batchnorm

__all__ = ["DomainBatchNorm", "LieBatchNorm", "RiemannianBatchNorm", "convert_sync_batchnorm"]
