"""What the site adds to the pages: tables, files outside docs/, and links that lead to them; `make site` builds it."""

from __future__ import annotations

import argparse
import re
from types import SimpleNamespace

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import PluginCollection
from mkdocs.structure.files import File, Files

from docs.generate import commands, hooks
from docs.generate.markdown import table
from pkb_gym.cli.program import COMMANDS
from tests.docs.pages import DOCS

CONFIG = MkDocsConfig()
CONFIG.plugins = PluginCollection()
CONFIG.plugins._current_plugin = None  # set while an event runs
CONFIG.load_dict({"site_name": "test", "docs_dir": str(DOCS), "site_dir": "site"})


def page(uri: str, text: str) -> SimpleNamespace:
    return SimpleNamespace(file=File.generated(CONFIG, uri, content=text))


def rendered(text: str, uri: str = "rewards.md") -> str:
    return hooks.on_page_markdown(text, page(uri, text))


@pytest.mark.parametrize(
    ("uri", "link", "led"),
    [
        ("index.md", "[x](docs/cli.md#exit-status)", "[x](cli.md#exit-status)"),
        ("index.md", "[x](examples/)", "[x](repository/examples/README.md)"),
        ("rewards.md", "[x](../README.md)", "[x](index.md)"),
        ("rewards.md", "[x](../pkb_gym/engine/)", "x"),
        ("problems/README.md", "[x](../../Makefile)", "[x](../repository/Makefile)"),
        ("repository/examples/README.md", "![x](../docs/loop.svg)", "![x](../../loop.svg)"),
        ("rewards.md", "[x](feedback.md)", "[x](feedback.md)"),
        ("rewards.md", "[x](../missing.md)", "[x](../missing.md)"),  # `mkdocs build --strict` reports it
        ("rewards.md", "`[x](../README.md)`", "`[x](../README.md)`"),
    ],
)
def test_links_lead_to_the_files_of_the_site(uri, link, led):
    assert rendered(link, uri) == led


def test_files_outside_that_a_page_leads_to_are_added(monkeypatch):
    # Those of all problems take seconds to write, have tests of their own, and are there where the site is built.
    monkeypatch.setattr(hooks.problems, "pages", lambda: {"all_reduce.md": "[x](../../Makefile)"})
    files = hooks.on_files(Files([page("cli.md", "[x](../examples/README.md)").file]), CONFIG)
    added = {file.src_uri for file in files}
    assert {"index.md", "repository/examples/README.md", "problems/all_reduce.md", "problems/coverage.svg"} <= added
    assert "repository/Makefile" in added, "links of a generated page count too"
    assert any(re.fullmatch(r"repository/examples/\w+\.py", uri) for uri in added), "links of an added page count too"


def test_tables_stand_in_for_their_names():
    assert rendered("{{ split }}\n").startswith("- ")
    with pytest.raises(PluginError, match=r"rewards\.md: no table 'absent'"):
        rendered("{{ absent }}\n")


def test_marks_of_tests_are_taken_away():
    fences = '```cpp evaluate="AllReduce"\n```\n```cpp title="a.cpp"\n```'
    assert rendered(fences) == fences.replace(' evaluate="AllReduce"', "")


def test_cells_show_bars_and_asterisks():
    assert table(("a|b", "`a|b`"), [("2*3*4", "`x*y`")]) == "| a\\|b | `a|b` |\n| --- | --- |\n| 2\\*3\\*4 | `x*y` |\n"


def test_the_reference_has_every_command_and_argument():
    text = commands.reference()
    assert [name for name in COMMANDS if f"\n## pkb {name}\n" not in f"\n{text}"] == []
    parser = argparse.ArgumentParser(prog="pkb try", description="Tries.")
    parser.add_argument("--size", metavar="NAME", default="tiny", help="the size (default: %(default)s)")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    section = commands._section(parser)
    assert "| `--size NAME` | the size (default: tiny) |" in section and "| `--hidden" not in section
