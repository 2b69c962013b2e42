"""The fault drill: verdicts are counted, what is left over is found, and a small drill finds nothing wrong."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import fault_drill, fault_standby
from benchmarks.fault_drill import Drill
from benchmarks.fault_rows import Row, is_sound
from benchmarks.fault_shares import merged
from benchmarks.fault_standby import FallenStandby
from benchmarks.fault_submissions import draw_submission
from benchmarks.fault_targets import ServiceTarget, Submission, Verdict
from benchmarks.side_by_side import shares
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig

GOOD = Submission("good", "AllReduce", "a kernel", None, EvalConfig())
CRASHES = Submission("crashes", "AllReduce", "another", "runtime_error", EvalConfig())
LOST = Verdict("infrastructure", "the zygote is gone")


class FakeTarget:
    """Gives the answers of a script."""

    pid = 0

    def __init__(self, *answers: Verdict) -> None:
        self.answers = list(answers)
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def evaluate(self, submission: Submission) -> Verdict:
        return self.answers.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(tmp_path, seed=1)


def test_verdicts_are_counted(drill: Drill) -> None:
    target = FakeTarget(LOST, Verdict(None), Verdict("out_of_memory", "killed"))
    first = [
        (GOOD, Verdict(None)),
        (CRASHES, Verdict("runtime_error")),
        (GOOD, LOST),
        (GOOD, LOST),
        (CRASHES, Verdict(None)),
    ]
    drill.count("zygote killed", "service", first, target)
    (row,) = drill.rows
    assert (row.times, row.evaluations, row.right, row.retried) == (1, 5, 2, 1) and target.started == 3
    assert row.wrong[0].startswith("good: out_of_memory in place of None: killed (at first infrastructure")
    assert row.wrong[1].startswith("crashes: None in place of runtime_error")
    assert not is_sound(drill.rows, []) and not is_sound([], ["process 7"]) and is_sound([Row("a", "service")], [])


def test_a_service_that_does_not_start_is_named(tmp_path: Path) -> None:
    """As where its packages are missing; the empty first line was taken for JSON."""
    target = ServiceTarget(tmp_path / "token", {"PYTHONHOME": str(tmp_path)})
    with pytest.raises(RuntimeError, match="`pkb serve` ended with status 1 before it had an address"):
        target.start()
    target.close()


def test_an_evaluation_that_is_never_judged_is_wrong(drill: Drill) -> None:
    drill.count("zygote killed", "evaluator", [(GOOD, LOST)], FakeTarget(*[LOST] * 9))
    assert drill.rows[0].wrong[0].startswith("good: infrastructure in place of None")


def test_what_is_left_over_is_found(drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_drill, "GONE_S", 0.2)
    assert drill.left_over() == []
    (tmp_path / "0" / "queue" / "tmp" / "pkb-scratch-1").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".half").touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = drill.left_over()
        assert f"process {process.pid}: " in found[0]
    assert found[1:] == ["file pkb-scratch-1", "file .half"]


def test_a_run_goes_on_behind_an_earlier_one_of_the_same_commit_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fault_drill.json"
    assert fault_drill.earlier(path, 1) == ([], 0, [])
    row = {"fault": "f", "through": "service", "times": 1, "evaluations": 3, "right": 3, "retried": 0, "wrong": []}
    path.write_text(json.dumps({"commit": "abc", "seed": 1, "kills": 5, "left_over": [], "rows": [row]}))
    monkeypatch.setattr(fault_drill, "header", lambda: {"commit": "abc"})
    assert fault_drill.earlier(path, 1) == ([Row(**row)], 5, [])
    assert fault_drill.earlier(path, 2) == ([], 0, [])
    monkeypatch.setattr(fault_drill, "header", lambda: {"commit": "abd"})
    assert fault_drill.earlier(path, 1) == ([], 0, [])


def test_shares_strike_every_kill_once(tmp_path: Path) -> None:
    assert [fault_drill.kills_of(share, 300) for share in shares(7)] == [43] * 6 + [42]
    numbers = [share.number + own * 7 for share in shares(7) for own in range(fault_drill.kills_of(share, 300))]
    assert sorted(numbers) == list(range(300))
    drawn = []
    for share in shares(3):
        folder = tmp_path / str(share.number)
        folder.mkdir()
        drawn.append(Drill(folder, 1, struck=2, share=share).number)
    assert drawn == [6, 7, 8]


def test_results_of_shares_become_one() -> None:
    row = {"fault": "f", "through": "service", "times": 1, "evaluations": 3, "right": 2, "retried": 1, "wrong": []}
    first = {"seed": 1, "kills": 1, "left_over": [], "rows": [row]}
    other = {"seed": 1, "kills": 2, "left_over": ["process 7"], "rows": [row | {"wrong": ["x"]}, row | {"fault": "a"}]}
    whole = merged([first, other])
    assert (whole["kills"], whole["left_over"]) == (3, ["process 7"])
    assert [row["fault"] for row in whole["rows"]] == ["a", "f"]
    assert (whole["rows"][1]["times"], whole["rows"][1]["evaluations"], whole["rows"][1]["wrong"]) == (2, 6, ["x"])


def test_gangs_that_stand_by_are_killed_before_the_next_source_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next evaluation takes the newest, so that one is always among them."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            for _ in range(3)
        ]
        older, newer, rank = sorted(process.pid for process in started)
        monkeypatch.setattr(fault_standby, "LATEST_S", 0.0)
        monkeypatch.setattr(fault_standby, "gangs", lambda pid, whose: {older: [], newer: [rank]})
        fault = FallenStandby(FakeTarget(), "service")
        with fault.taken_away(random.Random(0)):
            (ended,) = psutil.wait_procs([psutil.Process(newer), psutil.Process(rank)], timeout=0.5)[0]
    assert ended.returncode == -signal.SIGKILL


def test_where_no_gang_stands_by_the_drill_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_standby, "APPEAR_S", 0.01)
    monkeypatch.setattr(fault_standby, "gangs", lambda pid, whose: {})
    with pytest.raises(TimeoutError, match=r"no gang stands by after 0\.01 s"):
        FallenStandby(FakeTarget(), "evaluator").taken_away(random.Random(0)).__enter__()


@pytest.mark.parametrize(("names", "ranks_per_gpu"), [(("H100",), 2), (("H100",) * 2, 1), (("H100",) * 8, 1)])
def test_on_gpus_the_drill_has_sources_of_gpus(
    names: tuple[str, ...], ranks_per_gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "names", lambda: names)
    drawn = [draw_submission(random.Random(seed), "cuda", fresh=seed % 3 == 0) for seed in range(60)]
    assert {each.failure for each in drawn} >= {None, "output_mismatch", "runtime_error", "compile_error"}
    assert all(each.name.endswith((".cu", ".py")) for each in drawn)
    assert {(each.config.device, each.config.ranks_per_gpu) for each in drawn} == {("cuda", ranks_per_gpu)}


def test_on_gpus_gangs_stand_by_behind_the_service_too(drill: Drill, tmp_path: Path) -> None:
    on_gpus = Drill(tmp_path / "gpus", seed=1, device="cuda")
    found = [(fault.name, fault.through) for fault in on_gpus._other_faults()]
    assert found == [("standby gang killed", "service"), ("standby gang killed", "evaluator")]
    assert [fault.through for fault in drill._other_faults() if fault.name == "standby gang killed"] == ["evaluator"]


@pytest.mark.slow
def test_gangs_that_stand_by_may_fall(tmp_path: Path) -> None:
    """On the CPU by gangs that are prepared ahead as those of GPUs; other rows of the result stay."""
    row = {"fault": "f", "through": "service", "times": 1, "evaluations": 3, "right": 3, "retried": 0, "wrong": []}
    path = tmp_path / "fault_drill.json"
    path.write_text(json.dumps({"commit": "abc", "seed": 1, "kills": 5, "left_over": [], "rows": [row]}))
    command = ["-m", "benchmarks.fault_drill", "--only", "standby gang killed", "--repeats", "3"]
    ran = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(path.read_text())
    assert (found["kills"], found["left_over"]) == (5, [])
    other, own = found["rows"]
    assert other == row
    assert (own["fault"], own["times"], own["right"] + own["retried"], own["wrong"]) == (
        "standby gang killed",
        3,
        3,
        [],
    )
    assert own["commit"] not in ("", "abc")


@pytest.mark.slow
def test_a_small_drill_finds_nothing_wrong(tmp_path: Path) -> None:
    """In a process of its own: it makes itself the parent of orphans.

    With this seed one job strikes an evaluator (a candidate leader, a candidate rank), the other a service (a
    reference rank, a reference leader), so that each starts one of them.
    """
    command = ["-m", "benchmarks.fault_drill", "--kills", "4", "--repeats", "0", "--seed", "331", "--jobs", "2"]
    ran = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "fault_drill.json").read_text())
    assert found["kills"] == 4 and found["left_over"] == []
    assert {(row["fault"], row["through"]) for row in found["rows"] if row["times"]} == {
        ("candidate leader killed", "evaluator"),
        ("candidate rank killed", "evaluator"),
        ("reference rank killed", "service"),
        ("reference leader killed", "service"),
    }
