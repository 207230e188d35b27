"""The error that names the pip line when an optional dependency of the graph part is absent."""

import importlib
from types import ModuleType


def require(module: str) -> ModuleType:
    """Import a module of the ``gnn`` extra.

    Raises
    ------
    ImportError
        If it is missing, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(f'{module} is needed here and not installed: pip install "manifoldnorm[gnn]"') from error


def require_torch_geometric() -> ModuleType:
    """Import torch-geometric with its layers."""
    require("torch_geometric.nn")
    return require("torch_geometric")
