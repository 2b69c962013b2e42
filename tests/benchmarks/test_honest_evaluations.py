"""Right kernels pass again and again, one that is refused is counted, and a run goes on behind an earlier one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.fault_targets import Submission, Verdict
from benchmarks.honest_evaluations import (
    Kernel,
    Row,
    Sweep,
    calibrate,
    first_evaluations,
    read_earlier,
    right_kernels,
    summary,
)
from benchmarks.side_by_side import Share, shares
from pkb_gym.problems.catalogue import find_problem

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("reference", "expert")


def kernels() -> list[Kernel]:
    return [Kernel(Row("AllReduce", kernel), kernel) for kernel in KERNELS]


def test_each_kernel_in_turn() -> None:
    found = list(right_kernels([find_problem("AllGather")], "cpu"))
    assert [kernel.row.kernel for kernel in found] == ["reference", "expert"]
    work = [(kernel.row.kernel, seed) for kernel, seed in first_evaluations(found, 3)]
    assert work == [("reference", 0), ("expert", 0), ("reference", 1)]


def test_judges_share_the_work_and_what_is_refused_is_counted() -> None:
    of_all, requested = kernels(), []

    def judge(submission: Submission) -> Verdict:
        requested.append((submission.source, submission.config.seed))
        if submission.config.seed == 1:
            return Verdict("infrastructure", "no memory")
        return Verdict("output_mismatch" if submission.source == "expert" else None, "differs")

    sweep = Sweep(first_evaluations(of_all, 5), "cpu", 2, lambda: None)
    threads = [threading.Thread(target=sweep.work_with, args=(judge,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(requested)) == [("expert", 0), ("expert", 1), *(("reference", seed) for seed in range(3))]
    assert len(requested) == 5 + 2 * 2, "what was not judged is judged again"
    found = summary([kernel.row for kernel in of_all])
    assert (found["evaluations"], found["refused"], found["unjudged"]) == (5, 1, 2)
    assert of_all[1].row.refused == ["seed 0: output_mismatch: differs"]


def test_a_run_goes_on_behind_an_earlier_one(tmp_path: Path) -> None:
    path, before = tmp_path / "result.json", kernels()
    before[0].row.seeds, before[1].row.seeds = [0, 2], [0]
    before[1].row.refused = ["seed 0: race: late"]
    about = {"commit": "abc", "device": "cpu", "world_size": 2}
    path.write_text(json.dumps(about | summary([kernel.row for kernel in before])))
    after = kernels()
    read_earlier(path, about, after)
    assert [(kernel.row.kernel, seed) for kernel, seed in first_evaluations(after, 6)] == [
        *(("reference", 1), ("expert", 1)),
        ("expert", 2),
    ]
    assert after[1].row.refused == ["seed 0: race: late"]
    for other in ({"commit": "abd"}, {"device": "cuda"}, {"world_size": 4}):
        afresh = kernels()
        read_earlier(path, about | other, afresh)
        assert len(first_evaluations(afresh, 6)) == 6


def test_shares_have_processors_and_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9, 10})
    assert [share.processors() for share in shares(3)] == [[0, 1], [2, 3], [8, 9, 10]]
    assert [Share(number, 9).processors() for number in (0, 8)] == [[0], [10]]
    folders = [share.temporary_folder(tmp_path) for share in shares(2)]
    assert len({folder.parent for folder in folders}) == 2, "the folder above is the queue of those that wait"


def test_each_size_of_share_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[str]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9, 10})
    monkeypatch.setattr(subprocess, "run", lambda command, **_: measured.append(command[:3]))
    calibrate(shares(3))
    assert measured == [["taskset", "--cpu-list", "2,3"], ["taskset", "--cpu-list", "8,9,10"]]


def test_gpus_have_one_evaluator_at_a_time() -> None:
    command = [sys.executable, "-m", "benchmarks.honest_evaluations", "--device", "cuda", "--jobs", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "one evaluator at a time can use the GPUs" in ran.stderr


@pytest.mark.slow
def test_a_reference_passes_in_a_process_of_its_own(tmp_path: Path, compiled_before: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.honest_evaluations", "AllGather", "--evaluations", "1", "--jobs", "2"]
    environment = os.environ | {"PKB_CACHE_DIR": str(compiled_before), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "honest_evaluations.json").read_text())
    assert (found["evaluations"], found["refused"], found["unjudged"], found["jobs"]) == (1, 0, 0, 2)
    assert "processors" in found["machine"] and [row["seeds"] for row in found["rows"]] == [[0], []]
