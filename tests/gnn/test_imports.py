"""What importing `manifoldnorm.gnn` loads, and what it says when an optional package is missing."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_norm_needs_torch_alone() -> None:
    loaded = run(
        "import sys, manifoldnorm.gnn as gnn; gnn.PostDegNorm(4); "
        "print(sorted({'scipy', 'networkx', 'torch_geometric', 'matplotlib', 'joblib', 'rich'} & set(sys.modules)))"
    )
    assert loaded.strip() == "[]"


@pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("torch_geometric", "gnn.NodePolicy(4)"),
        ("scipy", "gnn.tasks"),
        ("networkx", "gnn.Graph"),
        ("joblib", "from manifoldnorm.gnn.missing import require; require('joblib')"),
    ],
)
def test_a_missing_package_is_named_with_its_command(missing: str, use: str) -> None:
    printed = run(
        "import sys\n"
        "import importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] == '{missing}':\n"
        f"            raise ModuleNotFoundError('No module named {missing}', name='{missing}')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import manifoldnorm.gnn as gnn\n"
        "try:\n"
        f"    {use}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert missing in printed
    assert 'pip install "manifoldnorm[gnn]"' in printed


def test_unknown_names_are_attribute_errors() -> None:
    import manifoldnorm.gnn as gnn

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        gnn.Nothing  # noqa: B018
    assert "NodePolicy" in dir(gnn)
    assert gnn.NodePolicy.__name__ == "NodePolicy"
