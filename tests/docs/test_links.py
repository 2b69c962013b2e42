"""Links of every page lead somewhere, and the files and modules that pages and sources name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
WRITTEN = [page for page in PAGES if page.parent != DOCS / "problems"]
"""Those that are not generated from the catalogue."""

PLACES = ("", "pkb_gym", "pkb_gym/engine", "pkb_gym/engine/include", "tests/candidates/cuda")
"""Folders that paths on pages start from."""

FOLDERS = ("benchmarks", "docs", "envs", "pkb_gym", "problems", "rewards", "tests", "training")
SUFFIXES = "py|cpp|cu|cuh|h|md|json|yaml|svg"


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of the relative links of a page; either can be empty."""
    found = re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text(encoding="utf-8")))
    return [tuple(target.partition("#")[::2]) for target in found if "://" not in target]


@cache
def anchors(page: Path) -> frozenset[str]:
    """What the headings of a page can be linked by, as GitHub makes it of them."""
    seen: dict[str, int] = {}
    names = []
    for heading in re.findall(r"^#+ (.+)$", _without_code(page.read_text(encoding="utf-8")), re.MULTILINE):
        shown = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.append(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return frozenset(names)


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def _names(page: Path, pattern: str) -> set[str]:
    """What stands between backticks on a page and fits a pattern."""
    spans = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    return {span for span in spans if re.fullmatch(pattern, span)}


def _label(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_links_lead_somewhere(page):
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        if anchor:
            assert anchor in anchors(target), f"{file}#{anchor}"


@pytest.mark.parametrize("page", WRITTEN, ids=_label)
def test_files_that_a_page_names_exist(page):
    for name in _names(page, rf"[\w.-]+(?:/[\w.-]+)+\.(?:{SUFFIXES})"):
        assert any((ROOT / place / name).exists() for place in (*PLACES, page.parent)), name


@pytest.mark.parametrize("page", WRITTEN, ids=_label)
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


def test_a_heading_that_stands_twice_has_two_anchors(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# `pkb eval`: one kernel\n\n## Size\n\n```\n# no heading\n```\n\n## Size\n", encoding="utf-8")
    assert anchors(page) == {"pkb-eval-one-kernel", "size", "size-1"}
