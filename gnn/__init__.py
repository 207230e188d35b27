"""Topology scales for normalised graph networks (PostDeg), and the node-selection benchmark that measures them.

`TopologyScale`, `PostDegNorm`, `erasure_factor` and `check_erasure` need torch alone. The rest needs
``pip install "manifoldnorm[gnn]"`` and is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manifoldnorm.gnn.erasure import ErasureReport, check_erasure, erasure_factor
from manifoldnorm.gnn.postdeg import PostDegNorm
from manifoldnorm.gnn.scale import TopologyScale, core_number, degree, relative_pagerank

if TYPE_CHECKING:
    from manifoldnorm.gnn import benchmark, generators, readers, tasks
    from manifoldnorm.gnn.graphs import Graph
    from manifoldnorm.gnn.policy import NodePolicy

__all__ = [
    "ErasureReport",
    "Graph",
    "NodePolicy",
    "PostDegNorm",
    "TopologyScale",
    "benchmark",
    "check_erasure",
    "core_number",
    "degree",
    "erasure_factor",
    "generators",
    "readers",
    "relative_pagerank",
    "tasks",
]

_LAZY_MODULES = ("benchmark", "generators", "readers", "tasks")
_LAZY_CLASSES = {"Graph": "graphs", "NodePolicy": "policy"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES and name not in _LAZY_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"{__name__}.{_LAZY_CLASSES.get(name, name)}"
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("manifoldnorm"):
            raise
        raise ImportError(f'manifoldnorm.gnn.{name} needs {error.name}: pip install "manifoldnorm[gnn]"') from error
    return loaded if name in _LAZY_MODULES else getattr(loaded, name)


def __dir__() -> list[str]:
    return __all__
