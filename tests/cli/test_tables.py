"""Tables on narrow consoles."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from pkb_gym.cli import command, diagnosis, list_problems
from pkb_gym.cli.command import plain_table, print_table
from pkb_gym.cli.listing import listed_catalogue
from pkb_gym.cli.verdict import cells, print_card, result_table
from pkb_gym.engine.records.compiler_report import KernelResources
from pkb_gym.engine.records.feedback import CompileReport, Profile, RankProfile
from pkb_gym.problems.catalogue import catalogue, find_problem
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


@pytest.mark.parametrize("width", [60, 80])
def test_no_number_of_a_card_is_cut_off(width):
    """At 80 columns a kernel's spills were "…", at 60 the profile's heads."""
    measured = timed(speedup=2.0)
    kernel = KernelResources(
        name="pkb::enqueued::barrier<16>",
        registers=22,
        shared_bytes=1,
        stack_bytes=2,
        spill_store_bytes=3,
        spill_load_bytes=4,
        barriers=0,
        instructions=None,
    )
    rank = RankProfile(
        rank=0,
        calls=0,
        wall_us=1234.5,
        compute_us=0,
        communication_us=0,
        waiting_us=0,
        host_us=0,
        put_bytes=0,
        got_bytes=0,
        link_bytes_per_s=None,
        user_us=0,
        system_us=0,
        minor_page_faults=0,
        major_page_faults=0,
        voluntary_switches=0,
        involuntary_switches=0,
    )
    feedback = measured.model_copy(
        update={
            "compile": CompileReport(duration_s=1.0, cached=False, log="", binary_bytes=None, kernels=(kernel,)),
            "profile": Profile(ranks=(rank,) * 2),
        }
    )
    narrow = console(width)
    print_card(narrow, find_problem("AllReduce"), feedback)
    assert "…" not in printed(narrow) and narrow.width == width
    lines = printed(narrow).splitlines()
    assert all(len(line) <= max(width, 80) for line in lines)
    assert any("registers  shared  stack  spill st  spill ld" in line for line in lines)
    assert any("per call  compute  comm  wait  host" in line for line in lines)


def test_what_is_no_terminal_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    for columns, width in (("80", 80), ("", 120), ("0", 120), ("wide", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert command.stdout().width == width


def test_long_words_of_prose_are_folded(monkeypatch):
    """The folder of cuobjdump, which a user needs, ended in "…"."""
    folder = "/" + "folder" * 20
    narrow = console(60)
    monkeypatch.setattr(diagnosis, "stdout", lambda: narrow)
    diagnosis.print_diagnoses([diagnosis.Diagnosis("cuobjdump", "ok", folder)], "what")
    assert folder in printed(narrow).replace("\n", "").replace(" ", "")
