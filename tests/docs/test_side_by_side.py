"""The list of references that are faster than the published ones is that of the kept comparison."""

from __future__ import annotations

import json

from tests.docs.pages import ROOT

KEPT = json.loads((ROOT / "benchmarks/data/references_side_by_side_2xh200.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")


def test_every_reference_that_is_faster_by_its_whole_interval_is_listed() -> None:
    rows = []
    for problem in KEPT["problems"].values():
        measured = [problem[turn] for turn in ("first", "again") if "ratio" in problem.get(turn, {})]
        if measured and measured[-1]["interval"][1] < 1:
            low, high = measured[-1]["interval"]
            times = f"{measured[-1]['published_reference_us']:g} | {measured[-1]['baseline_us']:g}"
            ratio = f"{1 / measured[-1]['ratio']:.2f} | {1 / high:.2f} to {1 / low:.2f}"
            rows.append(f"| {problem['name']} | {times} | {ratio} |")
    assert len(rows) > 10
    section = PAGE.split("### Where speedups do not compare with published ones")[1].split("## ")[0]
    assert sorted(rows) == sorted(line for line in section.splitlines() if line.count("|") == 6 and " to " in line)
