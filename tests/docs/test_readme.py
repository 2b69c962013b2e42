"""README.md: its example runs, its numbers and links hold; the links of docs/ too."""

from __future__ import annotations

import os
import re

import pytest

from pkb_gym.envs import evaluator_registry
from pkb_gym.problems.catalogue import catalogue
from tests.docs.pages import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(evaluator, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["info"]["feedback"].passed, names["info"]["feedback"].message
    assert names["reward"] > 0
    assert capsys.readouterr().out.startswith("# AllReduce\n")


def test_the_number_of_problems_holds():
    assert f"holds {len(catalogue())} of the benchmark's 87 problems" in README


def test_the_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test", "smoke"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:engine|pkb_gym|tests|envs|rewards|problems)/[\w/]+(?:\.\w+|/))`", text):
        path = ROOT / ("pkb_gym/" + name if name.startswith("engine/") else name)
        assert path.exists() or "max_abs" in name, name
