"""What is taken from the line that a crashed rank leaves on its stderr."""

from __future__ import annotations

import pytest

from pkb_gym.engine.gangs.crash_trace import places_in, python_lines_in, traces_of, without_traces


def test_a_return_address_stands_for_the_call_before_it():
    assert places_in("words\n\npkb-trace 11 1a2:at ff:by\nmore") == [0x1A2, 0xFE]


def test_the_last_trace_counts():
    assert places_in("pkb-trace 6 1:at\npkb-trace 11 2:at\n") == [2]


@pytest.mark.parametrize(
    "line", ["pkb-trace", "pkb-trace 11 zz:at", "pkb-trace 11 1:on", f"pkb-trace 11 {'f' * 13}:at"]
)
def test_what_is_no_trace_has_no_places(line: str):
    assert places_in(line) == []


def test_traces_are_not_shown_as_output():
    tail = "rank 0: one\nrank 0: \nrank 1: \nrank 1: pkb-trace 11 1:at\nrank 0: pkb-trace 3\nrank 1: two\n"
    assert without_traces(tail) == "rank 0: one\nrank 1: two\n"


def test_a_process_of_several_ranks_names_the_copy():
    output = "pkb-trace 11 of 1 1:at\npkb-trace 3 of 0 2:at\npkb-trace 6 of 1 3:by\n"
    assert places_in(traces_of(output, 1)) == [2] and places_in(traces_of(output, 0)) == [2]
    assert traces_of(output, 2) == "" and places_in(traces_of("pkb-trace 11 4:at\n", 0)) == [4]
    assert without_traces("rank 0: one\nrank 0: pkb-trace 11 of 1 1:at\n") == "rank 0: one\n"


def test_a_python_stack_shows_the_candidates_lines():
    output = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 517 in string_at
  File "candidate.py", line 9 in solution
  File "/opt/rankside/python.py", line 88 in call

Extension modules: numpy, torch (total: 2)
"""
    assert python_lines_in(output) == ["candidate.py:9 (solution)"]
    beneath = '  File "/pkb/pkb_gym/engine/rankside/candidate.py", line 98 in main\n'
    assert python_lines_in(output + beneath) == ["candidate.py:9 (solution)"], "the rank's own program"
    assert python_lines_in('  File "candidate.py", line 9 in solution\n') == [], "an exception's traceback, not a crash"
