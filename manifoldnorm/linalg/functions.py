"""The base class of our autograd functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers


class BatchedFunction(torch.autograd.Function):
    """An autograd function with `setup_context`, whose operations are batched, so that vmap can be derived for it.

    Call it with `call` and positional arguments.
    """

    generate_vmap_rule = True

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """Apply the function.

        `torch.autograd.Function.apply` binds the arguments to the signature of `forward` at every call, which takes
        longer than the Cholesky factor of a small matrix; outside of transforms and compilation that is skipped.
        """
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return cls.apply(*arguments)
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(arguments))  # type: ignore[misc]


def may_look_at(x: Tensor) -> bool:
    """Tell whether reading a value of `x` is possible and costs nothing: on the CPU, not compiled, not under vmap."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return False
        x = torch._C._functorch.get_unwrapped(x)
    return True


def pullback(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """Evaluate a function and return its vector-Jacobian product: `torch.func.vjp` without auxiliary output, typed."""
    value, pull = torch.func.vjp(function, *primals)[:2]
    return value, pull


Callee = TypeVar("Callee", bound=Callable[..., Any])


def constant_under_compile(function: Callee) -> Callee:
    """Mark a function of plain numbers whose result the compiler takes as a constant.

    This is `torch.compiler.assume_constant_result` without its import of the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
