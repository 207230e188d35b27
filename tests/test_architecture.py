"""Structure: who may import whom, what an import costs, what is packaged, and that every public example runs."""

import ast
import doctest
import importlib
import importlib.util
import os
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch

import manifoldnorm

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]

CORE = {"linalg", "manifolds", "nn", "optim"}
# What each package may import besides itself; the right-hand packages may import everything to their left.
ALLOWED = {
    "linalg": set(),
    "manifolds": {"linalg"},
    "signal": {"linalg", "manifolds"},
    "nn": {"linalg", "manifolds"},
    "optim": {"linalg", "manifolds"},
    "datasets": {"linalg", "manifolds", "nn", "signal"},
    "testing": CORE,
    "interop": CORE,
    "demos": CORE | {"datasets", "signal"},
    "gnn": CORE | {"datasets", "testing"},
    "equivariant": CORE | {"datasets", "testing"},
}
HEAVY = [
    "geoopt",
    "geomstats",
    "escnn",
    "torch_geometric",
    "scipy",
    "matplotlib",
    "networkx",
    "sklearn",
    "numpy.testing",
]


def packages() -> dict[str, Path]:
    """Map import names to folders, from the tree."""
    found = {}
    for top, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("__init__.py")):
            parts = path.parent.relative_to(ROOT / folder).parts
            found[".".join((top, *parts))] = path.parent
    return found


def modules() -> list[str]:
    return [
        f"{name}.{path.stem}" if path.stem != "__init__" else name
        for name, folder in packages().items()
        for path in sorted(folder.glob("*.py"))
    ]


def test_every_package_of_the_tree_is_listed() -> None:
    assert sorted(packages()) == sorted(PROJECT["tool"]["setuptools"]["packages"])


def imported(path: Path) -> set[str]:
    """Return the subpackages of manifoldnorm that a file imports, at any level of it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; between packages imports are absolute"
            if node.module == "manifoldnorm":
                names.update(alias.name for alias in node.names)
            elif node.module and node.module.startswith("manifoldnorm."):
                names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names.update(a.name.split(".")[1] for a in node.names if a.name.startswith("manifoldnorm."))
    return names & set(ALLOWED)


def test_imports_point_left() -> None:
    wrong = []
    for name, folder in packages().items():
        part = name.split(".")[1] if "." in name else ""
        if not part:
            continue
        for path in folder.glob("*.py"):
            extra = imported(path) - ALLOWED[part] - {part}
            wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in sorted(extra)]
    assert not wrong


def test_every_module_is_in_the_documentation() -> None:
    """The pages list modules one by one; commands, demos and the parts of the graph benchmark are not an interface."""
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"automodule:: (\S+)", pages))
    private = ("manifoldnorm.cli", "manifoldnorm.gnn.cli", "manifoldnorm.demos.", "manifoldnorm.gnn.benchmark_")
    expected = {name for name in modules() if name not in packages() and not name.startswith(private)}
    assert not sorted(expected - listed), "not in docs/api"
    assert not sorted(listed - set(modules())), "in docs/api, but there is no such module"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_torch_and_nothing_heavier() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import manifoldnorm, manifoldnorm.nn, manifoldnorm.optim, manifoldnorm.interop.geoopt\n"
        f"print([m for m in {HEAVY} if m in set(sys.modules) - before])"
    )
    assert run(code).strip() == "[]"


def test_import_does_not_touch_global_state() -> None:
    code = (
        "import torch, warnings; warnings.simplefilter('error')\n"
        "state = torch.get_rng_state(); dtype = torch.get_default_dtype(); threads = torch.get_num_threads()\n"
        "import manifoldnorm, manifoldnorm.nn, manifoldnorm.optim\n"
        "assert torch.equal(state, torch.get_rng_state())\n"
        "assert (dtype, threads) == (torch.get_default_dtype(), torch.get_num_threads())"
    )
    run(code)


def test_import_costs_little_over_torch() -> None:
    """Processor time, the least of three processes: what is over torch's own is below 0.3 seconds."""
    code = "import torch, time; start = time.process_time(); import manifoldnorm; print(time.process_time() - start)"
    assert min(float(run(code)) for _ in range(3)) < 0.3


def test_mapped_packages_know_their_names() -> None:
    pytest.importorskip("torch_geometric", reason="extra gnn")
    import manifoldnorm.equivariant
    import manifoldnorm.gnn

    assert manifoldnorm.gnn.PostDegNorm.__module__.startswith("manifoldnorm.gnn.")
    assert "gnn" not in sys.modules
    assert pickle.loads(pickle.dumps(manifoldnorm.gnn.PostDegNorm)) is manifoldnorm.gnn.PostDegNorm


def test_public_names_exist_and_are_documented() -> None:
    for module in (
        manifoldnorm,
        manifoldnorm.linalg,
        manifoldnorm.manifolds,
        importlib.import_module("manifoldnorm.nn"),
    ):
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, str):
                assert value.__doc__, f"{module.__name__}.{name} has no docstring"
    for name in manifoldnorm.manifolds.__all__:
        assert hasattr(manifoldnorm, name), f"{name} is not importable from manifoldnorm"


def examples() -> list[str]:
    return [name for name in modules() if name != "manifoldnorm.cli"]


@pytest.mark.parametrize("name", examples())
def test_examples_in_docstrings_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    torch.manual_seed(0)
    results = doctest.testmod(
        module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    assert results.failed == 0


@pytest.mark.slow
def test_source_distribution_makes_a_complete_wheel(tmp_path: Path) -> None:
    """sdist, then wheel, then an installed copy in a folder of its own imports all packages."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    names = sorted(packages())
    code = (
        f"import importlib; [importlib.import_module(n) for n in {names}]\nimport manifoldnorm as m; print(m.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert str(target) in out.stdout
    assert (target / "manifoldnorm" / "py.typed").is_file()
    assert len(list(pkgutil.walk_packages([str(target / "manifoldnorm")]))) > 30


def test_documented_commands_exist() -> None:
    """What the README says to type is there."""
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in ("demo", "test", "lint", "docs", "bench"):
        assert f"\n{target}:" in makefile
    assert "make demo" in readme
    assert "make test" in readme
    assert importlib.util.find_spec("manifoldnorm.cli") is not None
