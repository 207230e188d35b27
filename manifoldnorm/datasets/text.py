"""English text without a download: docstrings of the installed Python, or a file that the user names."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

STANDARD_LIBRARY = "stdlib"
SMALLEST_TEXT = 10_000
_SHORTEST_DOCSTRING = 200
_NOT_LIBRARY_CODE = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


@dataclass(frozen=True)
class CharacterText:
    """A text, its characters as token numbers, and where it came from.

    Attributes
    ----------
    text : str
        The whole text.
    source : str
        What it was made from, with versions: for the report of an experiment.
    sha256 : str
        Hash of the UTF-8 bytes of `text`. Two experiments ran on the same text exactly when their hashes agree.
    vocabulary : str
        The distinct characters, sorted; a token is a position in it.
    tokens : Tensor
        int64, shape (len(text),).

    Examples
    --------
    >>> toy = CharacterText.from_string("abba", source="an example")
    >>> toy.vocabulary, toy.tokens
    ('ab', tensor([0, 1, 1, 0]))
    >>> toy.decode(torch.tensor([1, 0]))
    'ba'
    """

    text: str = field(repr=False)
    source: str
    sha256: str
    vocabulary: str
    tokens: Tensor = field(repr=False, compare=False)

    @classmethod
    def from_string(cls, text: str, *, source: str) -> CharacterText:
        """Make one of a `text` that is not empty."""
        if not text:
            raise ValueError(f"text: expected at least one character, got none from {source}")
        vocabulary = "".join(sorted(set(text)))
        number = {character: i for i, character in enumerate(vocabulary)}
        tokens = torch.tensor([number[character] for character in text], dtype=torch.int64)
        return cls(text, source, hashlib.sha256(text.encode()).hexdigest(), vocabulary, tokens)

    def encode(self, text: str) -> Tensor:
        """Return the token numbers of `text`, int64 of shape (len(text),); ValueError on a character not seen."""
        unknown = sorted(set(text) - set(self.vocabulary))
        if unknown:
            raise ValueError(
                f"text: expected only the {len(self.vocabulary)} characters of the vocabulary, "
                f"got {''.join(unknown[:10])!r}; remove or replace them"
            )
        return torch.tensor([self.vocabulary.index(character) for character in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """Return the text of a vector of token numbers."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())

    def split(self, held_out: float = 0.05) -> tuple[Tensor, Tensor]:
        """Return the training tokens and the last `held_out` share of the text as validation tokens."""
        if not 0 < held_out < 1:
            raise ValueError(f"held_out: expected a share between 0 and 1, got {held_out}")
        cut = round(len(self.tokens) * (1 - held_out))
        return self.tokens[:cut], self.tokens[cut:]


def docstring_text(packages: Sequence[str] = (STANDARD_LIBRARY,), *, max_characters: int = 1_000_000) -> CharacterText:
    """Collect the long English docstrings of installed packages.

    Sources are parsed, never imported. Docstrings of more than 200 ASCII characters are kept once each and ordered by
    their hash, so the text depends on the installed versions only; `sha256` of the result says which text it was.

    Parameters
    ----------
    packages : sequence of str
        Names of importable packages; "stdlib" is the standard library (about 1.2 million characters).
    max_characters : int
        Where the text is cut.

    Returns
    -------
    CharacterText

    Raises
    ------
    ValueError
        A package is not installed, or the packages have fewer than 10,000 characters of such docstrings.

    Examples
    --------
    >>> text = docstring_text(["json", "argparse", "decimal"])
    >>> "docstrings of json" in text.source, len(text.vocabulary) < 128
    (True, True)
    """
    if max_characters < SMALLEST_TEXT:
        raise ValueError(f"max_characters: expected at least {SMALLEST_TEXT}, got {max_characters}")
    found: set[str] = set()
    for package in packages:
        for path in _source_files(package):
            found.update(_long_docstrings(path))
    ordered = sorted(found, key=lambda docstring: hashlib.sha256(docstring.encode()).digest())
    text = "\n\n".join(ordered)[:max_characters]
    source = "docstrings of " + ", ".join(_with_version(package) for package in packages)
    _require_size(text, source, "name more packages, or a text file")
    return CharacterText.from_string(text, source=source)


def file_text(path: str | Path) -> CharacterText:
    """Read a UTF-8 text file of at least 10,000 characters.

    Raises
    ------
    FileNotFoundError
        There is no file at `path`.
    ValueError
        It is not UTF-8 text, or too short to train and validate on.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "tale.txt"
    ...     _ = path.write_text("Once upon a time. " * 1000)
    ...     file_text(path).vocabulary
    ' .Oaceimnoptu'
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"text file: expected an existing file, found none at {str(path)!r}; check the path")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text file: expected UTF-8, but byte {error.start} of {str(path)!r} is not; convert the file to UTF-8"
        ) from None
    _require_size(text, str(path), "name a longer file")
    return CharacterText.from_string(text, source=path.name)


def _require_size(text: str, source: str, remedy: str) -> None:
    if len(text) < SMALLEST_TEXT:
        raise ValueError(f"text: expected at least {SMALLEST_TEXT} characters, got {len(text)} from {source}; {remedy}")


def _source_files(package: str) -> Iterator[Path]:
    if package == STANDARD_LIBRARY:
        folders: Iterable[str] = [sysconfig.get_path("stdlib")]
    else:
        spec = importlib.util.find_spec(package) if package else None
        if spec is None or (spec.origin is None and not spec.submodule_search_locations):
            raise ValueError(f"packages: expected an installed package, found none named {package!r}; install it")
        if not spec.submodule_search_locations:
            yield Path(str(spec.origin))
            return
        folders = spec.submodule_search_locations
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            if not _NOT_LIBRARY_CODE.intersection(path.relative_to(folder).parts):
                yield path


def _long_docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately broken files ship with some packages
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) > _SHORTEST_DOCSTRING and docstring.isascii():
                yield docstring


def _with_version(package: str) -> str:
    if package == STANDARD_LIBRARY:
        return f"the standard library of Python {platform.python_version()}"
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a module of the standard library, or one installed under another name
        return package
