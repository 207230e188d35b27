"""Tests that users run on their own manifolds and layers.

`ManifoldSuite` needs pytest; the `check_` functions need torch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manifoldnorm.testing.slopes import SlopeReport, check_gradient, check_retraction

if TYPE_CHECKING:
    from manifoldnorm.testing.suite import ManifoldSuite

__all__ = ["ManifoldSuite", "SlopeReport", "check_gradient", "check_retraction"]


def __getattr__(name: str) -> Any:
    if name == "ManifoldSuite":
        try:
            from manifoldnorm.testing.suite import ManifoldSuite
        except ModuleNotFoundError as error:
            raise ImportError("manifoldnorm.testing.ManifoldSuite needs pytest: pip install pytest") from error
        return ManifoldSuite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
