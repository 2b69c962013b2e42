"""A report as text, as JSON, and as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from .checks import KINDS, Place, Problem, Report


def as_text(report: Report, *, show_harmless: bool = False) -> str:
    """The report for people: a paragraph for each problem, and a last line with the counts."""
    shown = [problem for problem in report.problems if show_harmless or not problem.is_harmless]
    units = "gpus" if report.one_process else "ranks"
    paragraphs = [_paragraph(problem, units) for problem in shown]
    ranks = ", ".join(map(str, report.world_sizes))
    found = len([problem for problem in report.problems if not problem.is_harmless])
    verdict = "no problem found" if report.passed else f"{found} problem{'s' if found > 1 else ''} found"
    return "\n".join(
        [*paragraphs, f"{verdict} in {report.runs} runs of {ranks} {'GPUs' if report.one_process else 'ranks'}"]
    )


def _paragraph(problem: Problem, units: str) -> str:
    lines = [f"{_at(problem)}{problem.kind}: {problem.message}"]
    if problem.exposure:
        lines.append(f"  on a GPU: {problem.exposure}")
    again = f"--{units} {problem.world_size} --schedule {problem.schedule.policy}:{problem.schedule.seed}"
    lines.append(f"  in {problem.count} run{'s' if problem.count > 1 else ''}; again by {again}")
    return "\n".join(lines) + "\n"


def _at(problem: Problem) -> str:
    return "" if problem.second is None else f"{problem.second.file}:{problem.second.line}: "


def as_json(report: Report) -> str:
    """The report as a JSON object with the attributes of `Report` and `Problem`, and `passed`."""
    problems = [
        {
            "kind": problem.kind,
            "is_harmless": problem.is_harmless,
            "message": problem.message,
            "exposure": problem.exposure,
            "first": _place(problem.first),
            "second": _place(problem.second),
            "world_size": problem.world_size,
            "schedule": {"policy": problem.schedule.policy, "seed": problem.schedule.seed},
            "count": problem.count,
        }
        for problem in report.problems
    ]
    content = {
        "schema_version": 1,
        "passed": report.passed,
        "runs": report.runs,
        "world_sizes": list(report.world_sizes),
        "one_process": report.one_process,
        "problems": problems,
    }
    return json.dumps(content, indent=2)


def as_sarif(report: Report, source: str) -> str:
    """The report as SARIF 2.1.0.

    Args:
        report: Report of a check.
        source: Path of the file that problems without a line are shown at.
    """
    used = sorted({problem.kind for problem in report.problems})
    driver = {
        "name": "check-ranks",
        "rules": [{"id": kind, "shortDescription": {"text": KINDS[kind]}} for kind in used],
    }
    results = [_result(problem, source) for problem in report.problems]
    content = {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(content, indent=2)


def _result(problem: Problem, source: str) -> Mapping[str, Any]:
    place = problem.second or problem.first or Place(source, 1)
    result: dict[str, Any] = {
        "ruleId": problem.kind,
        "level": "note" if problem.is_harmless else "warning" if problem.kind == "weak_order" else "error",
        "message": {"text": problem.message},
        "locations": [{"physicalLocation": _physical(place)}],
    }
    if problem.first is not None and problem.first != place:
        result["relatedLocations"] = [
            {"physicalLocation": _physical(problem.first), "message": {"text": "the earlier access"}}
        ]
    return result


def _physical(place: Place) -> Mapping[str, Any]:
    return {"artifactLocation": {"uri": PurePath(place.file).as_posix()}, "region": {"startLine": place.line}}


def _place(place: Place | None) -> Mapping[str, Any] | None:
    return None if place is None else {"file": place.file, "line": place.line}
