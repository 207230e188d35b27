"""Sphinx configuration."""

import re
from importlib import metadata

project = "manifoldnorm"
author = "The manifoldnorm authors"
copyright = author
release = metadata.version("manifoldnorm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "manifoldnorm"
exclude_patterns = ["_build", "gallery/README.rst", "gallery_built/*.ipynb"]
# "ref.python": a parameter that has the name of fields of several named tuples is no reference to any of them.
suppress_warnings = ["config.cache", "ref.python"]

autodoc_member_order = "bysource"
autodoc_mock_imports = ["triton"]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_ivar = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "gallery_built",
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
}


def _escape(text: str) -> str:
    """Turn `code` into literals and escape what reStructuredText would read as markup in plain mathematics."""
    pieces = re.split(r"(``[^`]+``|`[^`]+`)", text)
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = piece if piece.startswith("``") else f"`{piece}`"
        else:
            pieces[i] = re.sub(r"(?<!\\)([|*])", r"\\\1", piece)
            pieces[i] = re.sub(r"(\w)_(?=\W|$)", r"\1\\_", pieces[i])
    return "".join(pieces)


def _plain_docstrings(app, what, name, obj, options, lines):
    """Our docstrings are plain text with `code`; examples are left alone."""
    in_example = False
    for i, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            in_example = True
        elif not line.strip():
            in_example = False
        if not in_example:
            lines[i] = _escape(line)


def setup(app):
    app.connect("autodoc-process-docstring", _plain_docstrings, priority=1)
