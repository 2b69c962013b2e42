"""Pages of problems show all that is declared."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from docs.generate import problems
from pkb_gym.problems.catalogue import catalogue, reference_source
from tests.whole_tables import sampled

SHOWN = sampled(catalogue(), 4)
"""Problems whose pages are looked at; `make site` writes those of all."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {f"{problem.folder}.md": problems.page(problem) for problem in SHOWN}


def test_every_problem_has_a_page(monkeypatch):
    monkeypatch.setattr(problems, "page", lambda problem: problem.name)
    made = problems.pages.__wrapped__()  # without its cache, in which other tests would find the names
    assert made == {f"{problem.folder}.md": problem.name for problem in catalogue()}


def test_pages_name_their_environment_and_the_list_links_all(pages):
    listing = problems.listing()
    for problem in SHOWN:
        assert problem.env_id in pages[f"{problem.folder}.md"]
    for problem in catalogue():
        assert f"[{problem.name}]({problem.folder}.md)" in listing


def test_a_page_shows_all_that_is_declared(pages):
    for problem in SHOWN:
        text = re.sub(r"\\([|*])", r"\1", pages[f"{problem.folder}.md"])
        shown = [arg.name for arg in problem.args] + [out.name for out in problem.outputs] + list(problem.sizes["tiny"])
        assert [name for name in shown if f"| `{name}` |" not in text] == []
        assert all(weakness in text for weakness in problem.weaknesses)
        assert all(out.check.describe() in text for out in problem.outputs)
        assert reference_source(problem) in pages[f"{problem.folder}.md"]
        assert problem.no_capture_because in text


def test_the_table_of_captures_names_every_reference_that_is_not_captured():
    text = problems.captures()
    reasons = {problem.name: problem.no_capture_because for problem in catalogue() if problem.no_capture_because}
    assert re.findall(r"^\| (\w+) \| (.+) \|$", text, re.MULTILINE)[1:] == list(reasons.items())
    assert text.startswith(f"{len(catalogue()) - len(reasons)} of {len(catalogue())} references")


def test_tables_have_as_many_cells_as_heads(pages):
    for name, text in pages.items():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) for line in block.splitlines()}
            assert len(cells) == 1, f"{name}: {block[:200]}"


def test_the_picture_counts_every_problem():
    root = ET.fromstring(problems.coverage())
    words = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(int(word) for word in words if word.isdigit()) == len(catalogue())


def test_most_origins_belong_to_a_family():
    others = [p.name for p in catalogue() if problems.origin_family(p) == problems.OTHER]
    assert len(others) <= len(catalogue()) / 10, f"name a family in docs/generate/problems.py for {', '.join(others)}"
