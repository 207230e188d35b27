"""The base class of our autograd functions."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class BatchedFunction(torch.autograd.Function):
    """An autograd function with `setup_context`, whose operations are batched, so that vmap can be derived for it."""

    generate_vmap_rule = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # torch inspects the signature of `forward` at every call, which costs more than a small matrix's Cholesky
        # factor; it takes this attribute when it is there.
        forward = cls.forward
        if not hasattr(forward, "__signature__"):
            forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
