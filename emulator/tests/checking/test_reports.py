"""Reports as text, JSON and SARIF."""

from __future__ import annotations

import json

from rank_emulator import Schedule
from rank_emulator.checking import Place, Problem, Report, as_json, as_sarif, as_text

RACE = Problem(
    "weak_order", "weak order on 4 bytes", "two parts of the L2", Place("a.cu", 3), Place("b.cuh", 7), 4,
    Schedule("one_ahead", 12), 5,
)  # fmt: skip
DEADLOCK = Problem("deadlock", "nobody can go on", None, None, None, 2, Schedule())
HARMLESS = Problem("benign", "same value", None, Place("a.cu", 1), Place("a.cu", 1), 4, Schedule())


def test_text_has_the_line_the_remedy_and_how_to_see_it_again() -> None:
    text = as_text(Report((DEADLOCK, RACE, HARMLESS), 40, (2, 4)))
    assert "b.cuh:7: weak_order: weak order on 4 bytes\n  on a GPU: two parts of the L2\n" in text
    assert "in 5 runs; again by --ranks 4 --schedule one_ahead:12" in text
    assert text.startswith("deadlock: nobody can go on\n  in 1 run; again by --ranks 2 --schedule together:0")
    assert text.endswith("2 problems found in 40 runs of 2, 4 ranks") and "same value" not in text


def test_harmless_races_pass() -> None:
    report = Report((HARMLESS,), 20, (4,))
    assert report.passed and as_text(report) == "no problem found in 20 runs of 4 ranks"


def test_json_has_all_of_a_problem() -> None:
    parsed = json.loads(as_json(Report((RACE, HARMLESS), 20, (4,))))
    assert parsed["passed"] is False and parsed["schema_version"] == 1 and parsed["world_sizes"] == [4]
    assert parsed["problems"][0] == {
        "kind": "weak_order",
        "is_harmless": False,
        "message": "weak order on 4 bytes",
        "exposure": "two parts of the L2",
        "first": {"file": "a.cu", "line": 3},
        "second": {"file": "b.cuh", "line": 7},
        "world_size": 4,
        "schedule": {"policy": "one_ahead", "seed": 12},
        "count": 5,
    }


def test_sarif_has_a_rule_for_each_kind_and_both_lines() -> None:
    (run,) = json.loads(as_sarif(Report((DEADLOCK, RACE, HARMLESS), 20, (4,)), "main.cu"))["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {"deadlock", "weak_order", "benign"}
    deadlock, race, harmless = run["results"]
    assert [each["level"] for each in run["results"]] == ["error", "warning", "note"]
    assert deadlock["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "main.cu"
    location = race["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "b.cuh"}, "region": {"startLine": 7}}
    assert race["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert "relatedLocations" not in harmless
