"""Docstrings as the generators of pages show them, and their command lines."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

parts = load_module(DOCS / "page_parts.py", "tests.docs.page_parts")


class Both:
    """A class.

    Args:
        size: of it, whose description
            takes two lines.

    Attributes:
        size: see above.

    Raises:
        ValueError: it is negative.

    Example:
        >>> Both()
        ...
    """


class Record:
    """A dataclass.

        area = width * height

    Attributes:
        width: of it.
    """


def test_lists_keep_their_entries_and_code_its_indent():
    assert parts.markdown(Both) == (
        "A class.\n\nParameters:\n\n- `size`: of it, whose description\n  takes two lines.\n\n"
        "Attributes:\n\n- `size`: see above.\n\nRaises:\n\n- `ValueError`: it is negative."
    )
    assert "\n    area = width * height\n" in parts.markdown(Record)


def test_attributes_of_a_dataclass_are_its_parameters():
    assert parts.markdown(Record).endswith("Parameters:\n\n- `width`: of it.")


def test_an_example_is_a_session():
    assert parts.example(Both) == ">>> Both()\n..."
    assert parts.example(Record) == ""


GENERATORS = sorted(path for path in DOCS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", GENERATORS, ids=lambda path: path.stem)
def test_a_generator_that_is_asked_for_help_writes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One measured for minutes, and wrote its page anew."""
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.setattr(Path, "write_text", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {path.name}")
