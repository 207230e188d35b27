"""The text of language experiments: where it comes from, and what is refused."""

import hashlib
import sys
from pathlib import Path

import pytest
import torch

from manifoldnorm.datasets.text import CharacterText, docstring_text, file_text


def test_standard_library_text_is_large_english_and_hashed() -> None:
    text = docstring_text(max_characters=300_000)
    assert len(text.text) == 300_000
    assert text.text.isascii()
    assert text.text.count(" the ") > 2000
    assert text.sha256 == hashlib.sha256(text.text.encode()).hexdigest()
    assert "Python 3." in text.source


def test_same_installation_gives_the_same_text_and_order_does_not_depend_on_package_order() -> None:
    assert docstring_text(["json", "decimal"]).sha256 == docstring_text(["decimal", "json"]).sha256


def test_packages_are_parsed_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "explosive"
    package.mkdir()
    sentence = "This sentence is part of a docstring that nobody imports. "
    docstrings = "\n".join(f'def f{i}():\n    """{i} {sentence * 5}"""' for i in range(50))
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n" + docstrings)
    (package / "broken.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    text = docstring_text(["explosive"])
    assert text.text.count(sentence.strip()) == 250
    assert "explosive" not in sys.modules


def test_tokens_round_trip_and_the_split_is_a_partition() -> None:
    text = docstring_text(["json", "argparse", "decimal"])
    assert text.decode(text.tokens) == text.text
    assert torch.equal(text.encode(text.text[:500]), text.tokens[:500])
    training, validation = text.split(0.1)
    assert torch.equal(torch.cat([training, validation]), text.tokens)
    assert len(validation) == pytest.approx(0.1 * len(text.tokens), abs=1)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "märchen.txt"
    content = "Es war einmal ein König.\n" * 500
    path.write_text(content, encoding="utf-8")
    assert file_text(path).text == content
    assert file_text(str(path)).source == "märchen.txt"


def test_a_missing_tiny_or_binary_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.txt.*check the path"):
        file_text(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match="expected an existing file"):
        file_text(tmp_path)
    tiny = tmp_path / "tiny.txt"
    tiny.write_text("short")
    with pytest.raises(ValueError, match=r"at least 10000 characters, got 5.*longer file"):
        file_text(tiny)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"abc\xff\xfe" * 5000)
    with pytest.raises(ValueError, match=r"byte 3 .*not; convert"):
        file_text(binary)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no_such_package_here"):
        docstring_text(["no_such_package_here"])
    with pytest.raises(ValueError, match="at least 10000 characters"):
        docstring_text(["this"])
    with pytest.raises(ValueError, match="max_characters"):
        docstring_text(max_characters=5)
    with pytest.raises(ValueError, match="held_out"):
        CharacterText.from_string("abc", source="here").split(1.0)
    with pytest.raises(ValueError, match="'z'"):
        CharacterText.from_string("abc", source="here").encode("az")
    with pytest.raises(ValueError, match="at least one character"):
        CharacterText.from_string("", source="here")
