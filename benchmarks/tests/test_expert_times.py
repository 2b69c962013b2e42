"""The measured times of experts that the package has."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.common import RESULTS
from benchmarks.expert_times import as_json, measured_times
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.problems.expert_times import EXPERT_TIMES, expert_times

ROW = {
    "problem": "AllReduce",
    "kernel": "expert",
    "size": "tiny",
    "world_size": 2,
    "passed": True,
    "baseline_us": 40.0,
    "baseline_graph_us": None,
    "candidate_us": 8.0,
    "speedup": 5.0,
    "speedup_low": 4.5,
    "utilisation": None,
}


def save(folder: Path, name: str, date: str, rows: list[dict[str, object]]) -> Path:
    path = folder / name
    path.write_text(json.dumps({"date": date, "commit": f"of {date}", "gpus": ["a GPU"], "rows": rows}))
    return path


def test_the_package_has_what_the_results_say():
    text = as_json(measured_times(sorted(RESULTS.glob("gpu_experts_*.json"))))
    assert EXPERT_TIMES.read_text(encoding="utf-8") == text, "run `python -m benchmarks.expert_times`"


def test_every_time_is_of_an_expert():
    for name in {row["problem"] for row in json.loads(EXPERT_TIMES.read_text(encoding="utf-8"))["rows"]}:
        assert expert_source(find_problem(name), "cu") and expert_times(name)
    assert expert_times("a problem of one's own") == ()


def test_the_latest_time_of_an_expert_that_passed_counts(tmp_path: Path):
    newer = save(tmp_path, "a.json", "2026-02-02", [ROW | {"candidate_us": 7.0}])
    rivals = [ROW | {"kernel": "one_shot"}, ROW | {"size": "M=64"}, ROW | {"size": "large", "passed": False}]
    older = save(tmp_path, "b.json", "2026-01-01", [ROW, *rivals])
    (time,) = measured_times([newer, older])
    assert (time.expert_us, time.date, time.gpu, time.dtype) == (7.0, "2026-02-02", "a GPU", "bfloat16")
