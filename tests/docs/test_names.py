"""The files and modules that pages and sources name exist; `make site` checks links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
PLACES = ("", "pkb_gym", "pkb_gym/engine", "pkb_gym/engine/include", "tests/candidates/cuda")
"""Folders that paths on pages start from."""

FOLDERS = ("benchmarks", "docs", "envs", "pkb_gym", "problems", "rewards", "tests", "training")
SUFFIXES = "py|cpp|cu|cuh|h|md|json|yaml|svg"


def _names(page: Path, pattern: str) -> set[str]:
    """What stands between backticks on a page and fits a pattern."""
    spans = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    return {span for span in spans if re.fullmatch(pattern, span)}


def _label(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_files_that_a_page_names_exist(page):
    for name in _names(page, rf"[\w.-]+(?:/[\w.-]+)+\.(?:{SUFFIXES})"):
        assert any((ROOT / place / name).exists() for place in (*PLACES, page.parent)), name


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_modules_that_a_page_names_exist(page):
    for name in _names(page, r"(?:pkb_gym|benchmarks)(?:\.\w+)+"):
        parts = name.split(".")
        depth = next(d for d in range(len(parts), 0, -1) if _module(parts[:d]) is not None)
        text = _module(parts[:depth]).read_text(encoding="utf-8")
        missing = [part for part in parts[depth:] if not re.search(rf"\b{part}\b", text)]
        assert not missing, name


def _module(parts: list[str]) -> Path | None:
    path = ROOT.joinpath(*parts)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def test_pages_that_sources_name_exist():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".h", ".yaml")]
    for path in [ROOT / "Makefile", *files]:
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{path}: {name}"
