"""The section on faults is that of the result, and names what went wrong."""

from __future__ import annotations

import json
from pathlib import Path

from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

generator = load_module(DOCS / "fault_tables.py", "tests.docs.fault_tables")
ROW = {
    "fault": "compiler killed",
    "through": "service",
    "times": 2,
    "evaluations": 6,
    "right": 4,
    "retried": 1,
    "wrong": ["good.cpp: compile_error"],
}


def test_the_section_is_that_of_the_result():
    page = generator.PAGE.read_text(encoding="utf-8")
    assert page == generator.section(), "docs/security_faults.md is stale: run `python docs/fault_tables.py`"


def test_wrong_verdicts_and_leftovers_are_named(tmp_path: Path):
    result = {"seed": 1, "kills": 2, "commit": "abc", "left_over": ["file pkb-scratch-x"], "rows": [ROW]}
    (tmp_path / "fault_drill.json").write_text(json.dumps(result))
    section = generator.section(tmp_path)
    assert "2 kills with seed 1" in section and "files left over: 1." in section
    assert "| compiler killed | service | 2 | 6 | 4 | 1 | 1 |" in section
    assert "| compiler killed | service | good.cpp: compile_error |" in section
    assert "| file pkb-scratch-x |" in section
    assert generator.section(tmp_path / "none") == ""
