"""Tables on narrow consoles."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pkb_gym.cli import list_problems
from pkb_gym.cli.command import plain_table, print_table
from pkb_gym.cli.listing import listed_catalogue
from pkb_gym.cli.verdict import cells, result_table
from pkb_gym.problems.catalogue import catalogue
from pkb_gym.rewards.examples import timed


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_list_of_problems_fits(width, monkeypatch, tmp_path):
    """At 80 columns the summaries stood in a column of 13, and names were cut off."""
    narrow = console(width)
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(list_problems, "stdout", lambda: narrow)
    list_problems._print_table(listed_catalogue(), [])
    lines = printed(narrow).splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert all(any(problem.name in line.split() for line in lines) for problem in catalogue())
    assert len(lines) < 10 * len(catalogue())


def test_a_table_that_cannot_fit_is_not_cut_off():
    """Rich put "…" in place of times and speedups, which no scrolling brings back."""
    table = result_table("file", "problem")
    table.add_row("hyena_cp.second.cpp", "UlyssesQKVGatherSeqScatterHeads", *cells(timed(speedup=2.0), 1.5))
    narrow = console(80)
    print_table(narrow, table)
    assert "…" not in printed(narrow) and "of roofline" in printed(narrow) and "2.00x" in printed(narrow)
    assert len(printed(narrow).splitlines()) == 3
    assert narrow.width == 80


def test_prose_is_wrapped_where_the_rest_fits():
    table = plain_table()
    table.add_column("name", no_wrap=True)
    table.add_column("found")
    table.add_row("sandbox", "word " * 50)
    narrow = console(80)
    print_table(narrow, table)
    assert all(len(line) <= 80 for line in printed(narrow).splitlines()) and "…" not in printed(narrow)
