"""Finding data files that ship inside an installed package, without importing the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def package_file(package: str, *parts: str, extra: str) -> Path:
    """Return the path of a data file inside an installed package.

    Parameters
    ----------
    package : str
        The top-level package; it is located but not imported.
    *parts : str
        Path of the file below the package's folder.
    extra : str
        The extra of manifoldnorm that installs the package, for the error message.

    Raises
    ------
    ModuleNotFoundError
        When the package is not installed, with the pip line that installs it.
    FileNotFoundError
        When the installed version does not hold the file.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f'these data ship with {package}, which is not installed; run: pip install "manifoldnorm[{extra}]"',
            name=package,
        )
    for folder in spec.submodule_search_locations:
        path = Path(folder, *parts)
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"the installed {package} has no file {'/'.join(parts)}; install the version that "
        f'pip install "manifoldnorm[{extra}]" asks for'
    )
