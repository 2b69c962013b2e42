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


def test_results_of_gpus_stand_behind_those_of_the_cpu_and_rows_name_their_commit(tmp_path: Path):
    result = {"seed": 1, "kills": 2, "commit": "abc", "left_over": [], "rows": [ROW | {"wrong": []}]}
    (tmp_path / "fault_drill.json").write_text(json.dumps(result))
    later = ROW | {"fault": "standby gang killed", "wrong": [], "commit": "def"}
    on_gpus = result | {"kills": 7, "commit": "123", "rows": [later]}
    (tmp_path / "fault_drill_gpus.json").write_text(json.dumps(on_gpus))
    section = generator.section(tmp_path)
    assert section.count(generator.TITLE) == 1
    cpu, gpus = section.index("2 ranks of the CPU; commit abc ("), section.index("2 ranks of GPUs; commit 123, standby")
    assert cpu < section.index("| compiler killed |") < gpus < section.index("| standby gang killed | service | 2 |")
    assert "standby gang killed: def (" in section


def test_wrong_verdicts_and_leftovers_are_named(tmp_path: Path):
    result = {"seed": 1, "kills": 2, "commit": "abc", "left_over": ["file pkb-scratch-x"], "rows": [ROW]}
    (tmp_path / "fault_drill.json").write_text(json.dumps(result))
    section = generator.section(tmp_path)
    assert "2 kills with seed 1" in section and "files left over: 1." in section
    assert "| compiler killed | service | 2 | 6 | 4 | 1 | 1 |" in section
    assert "| compiler killed | service | good.cpp: compile_error |" in section
    assert "| file pkb-scratch-x |" in section
    assert generator.section(tmp_path / "none") == ""
