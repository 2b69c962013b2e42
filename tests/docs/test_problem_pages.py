"""docs/problems/ is what docs/generate_problem_pages.py writes: a page for every problem, an index, a picture."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from pkb_gym.problems.catalogue import catalogue
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

generator = load_module(DOCS / "generate_problem_pages.py", "tests.docs.generate_problem_pages")
FOLDER = DOCS / "problems"
STALE = "docs/problems is stale: run `python docs/generate_problem_pages.py`"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generator.render()


def test_every_file_is_fresh_and_there_is_no_other(pages):
    assert {path.name for path in FOLDER.iterdir()} == set(pages), STALE
    old = [name for name, text in pages.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert not old, f"{STALE} ({', '.join(old)})"


def test_every_problem_has_a_page_that_the_index_links(pages):
    for problem in catalogue():
        assert problem.env_id in pages[f"{problem.folder}.md"]
        assert f"[{problem.name}]({problem.folder}.md)" in pages["README.md"]


def test_a_page_shows_all_that_is_declared(pages):
    for problem in catalogue():
        text = pages[f"{problem.folder}.md"].replace("\\|", "|")
        shown = [arg.name for arg in problem.args] + [out.name for out in problem.outputs] + list(problem.sizes["tiny"])
        assert [name for name in shown if f"| `{name}` |" not in text] == []
        assert all(weakness in text for weakness in problem.weaknesses)
        assert all(out.check.describe() in text for out in problem.outputs)


def test_tables_have_as_many_cells_as_heads(pages):
    for name, text in pages.items():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(cells) == 1, f"{name}: {block[:200]}"


def test_the_picture_counts_every_problem(pages):
    root = ET.fromstring(pages["coverage.svg"])
    space = "{http://www.w3.org/2000/svg}"
    cells = [int(text.text) for text in root.iter(f"{space}text") if text.get("class") == "on"]
    assert sum(cells) == len(catalogue())
    words = [text.text for text in root.iter(f"{space}text")]
    assert f"{len(catalogue())} problems" in words
    assert "prefers-color-scheme: dark" in pages["coverage.svg"]


def test_most_origins_belong_to_a_family():
    others = [p.name for p in catalogue() if generator.parts.origin_family(p) == generator.parts.OTHER]
    assert len(others) <= len(catalogue()) / 10, f"name a family in docs/page_parts.py for {', '.join(others)}"


def test_a_changed_declaration_makes_its_page_stale(pages):
    problem = replace(catalogue()[0], origin="elsewhere")
    assert generator.page(problem, {}) != pages[f"{problem.folder}.md"]
