"""The fault drill: verdicts are counted, what is left over is found, and a small drill finds nothing wrong."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.config import EvalConfig
from tests.engine.joined_libraries import compile_together
from tests.fake_gpus import pretend_gpus
from tests.faults import drill as drills
from tests.faults import standby
from tests.faults.drill import Drill
from tests.faults.rows import Row, is_sound
from tests.faults.standby import FallenStandby
from tests.faults.submissions import CANDIDATES, CPU_SOURCES, draw_submission
from tests.faults.targets import ROOT, ServiceTarget, Submission, Verdict
from tests.whole_tables import by_make_all

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


def test_a_killed_rank_is_the_failure_of_one_candidate_a_kill(drill: Drill) -> None:
    killed = Verdict("runtime_error", "rank 1 was killed by SIGKILL: the machine has no record")
    drill.count(
        "candidate rank killed", "service", [(GOOD, killed), (GOOD, killed), (GOOD, Verdict(None))], FakeTarget()
    )
    drill.count("candidate leader killed", "service", [(GOOD, killed)], FakeTarget())
    of_leader, of_rank = drill.rows
    assert (of_rank.right, len(of_rank.wrong)) == (2, 1), "one of them had no rank killed"
    assert (of_leader.right, len(of_leader.wrong)) == (0, 1)


def test_a_service_that_does_not_start_is_named(tmp_path: Path) -> None:
    """A service without its packages does not start; the empty first line was taken for JSON."""
    target = ServiceTarget(tmp_path / "token", {"PYTHONHOME": str(tmp_path)})
    with pytest.raises(RuntimeError, match="`pkb serve` ended with status 1 before it had an address"):
        target.start()
    target.close()


def test_an_evaluation_that_is_never_judged_is_wrong(drill: Drill) -> None:
    drill.count("zygote killed", "evaluator", [(GOOD, LOST)], FakeTarget(*[LOST] * 9))
    assert drill.rows[0].wrong[0].startswith("good: infrastructure in place of None")


def test_what_is_left_over_is_found(drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "GONE_S", 0.2)
    assert drill.left_over() == []
    (tmp_path / "queue" / "tmp" / "pkb-scratch-1").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".half").touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = drill.left_over()
        assert f"process {process.pid}: " in found[0]
    assert found[1:] == ["file pkb-scratch-1", "file .half"]


def test_gangs_that_stand_by_are_killed_before_the_next_source_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next evaluation takes the newest, so that one is always among them."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            for _ in range(3)
        ]
        older, newer, rank = sorted(process.pid for process in started)
        monkeypatch.setattr(standby, "LATEST_S", 0.0)
        monkeypatch.setattr(standby, "gangs", lambda pid, whose: {older: [], newer: [rank]})
        fault = FallenStandby(FakeTarget(), "service")
        with fault.taken_away(random.Random(0)):
            (ended,) = psutil.wait_procs([psutil.Process(newer), psutil.Process(rank)], timeout=0.5)[0]
    assert ended.returncode == -signal.SIGKILL


def test_where_no_gang_stands_by_the_drill_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "APPEAR_S", 0.01)
    monkeypatch.setattr(standby, "gangs", lambda pid, whose: {})
    with pytest.raises(TimeoutError, match=r"no gang stands by after 0\.01 s"):
        FallenStandby(FakeTarget(), "evaluator").taken_away(random.Random(0)).__enter__()


@pytest.mark.parametrize(("names", "ranks_per_gpu"), [(("H100",), 2), (("H100",) * 2, 1), (("H100",) * 8, 1)])
def test_on_gpus_the_drill_has_sources_of_gpus(
    names: tuple[str, ...], ranks_per_gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, *names)
    drawn = [draw_submission(random.Random(seed), "cuda", fresh=seed % 3 == 0) for seed in range(60)]
    assert {each.failure for each in drawn} >= {None, "output_mismatch", "runtime_error", "compile_error"}
    assert all(each.name.endswith((".cu", ".py")) for each in drawn)
    assert {(each.config.device, each.config.ranks_per_gpu) for each in drawn} == {("cuda", ranks_per_gpu)}


def test_on_gpus_gangs_stand_by_behind_the_service_too(drill: Drill, tmp_path: Path) -> None:
    on_gpus = Drill(tmp_path / "gpus", seed=1, device="cuda")
    found = [(fault.name, fault.through) for fault in on_gpus._other_faults()]
    assert found == [("standby gang killed", "service"), ("standby gang killed", "evaluator")]
    assert [fault.through for fault in drill._other_faults() if fault.name == "standby gang killed"] == ["evaluator"]


def rows_of(*options: str) -> dict[tuple[str, str], list[int]]:
    """Fault and target -> times, evaluations, right, repeated and wrong, of a drill that leaves nothing over.

    It is a process of its own, since it makes itself the parent of orphans.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.drill", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0 and "left over: nothing" in ran.stdout, ran.stdout + ran.stderr
    found = re.findall(r"^(.+?) +(evaluator|service) +([ \d]+)$", ran.stdout, re.MULTILINE)
    return {(fault, through): [int(count) for count in counts.split()] for fault, through, counts in found}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of caches with the sources of the drill: they are compiled together here, and by themselves there."""
    folder = tmp_path_factory.mktemp("compiled")
    sources = [(CANDIDATES / name).read_text(encoding="utf-8") for name in CPU_SOURCES if name.endswith(".cpp")]
    compile_together([source for source in sources if "compile_error" not in source], CompileCache.in_folder(folder))
    return str(folder)


@by_make_all
@pytest.mark.slow
def test_gangs_that_stand_by_may_fall(compiled: str) -> None:
    """On the CPU by gangs that are prepared ahead as those of GPUs."""
    found = rows_of("--only", "standby gang killed", "--repeats", "3", "--kills", "0", "--compiled", compiled)
    times, evaluations, right, repeated, wrong = found.pop(("standby gang killed", "evaluator"))
    assert (times, evaluations, right + repeated, wrong) == (3, 3, 3, 0) and not found


@by_make_all
@pytest.mark.slow
def test_a_small_drill_finds_nothing_wrong(compiled: str) -> None:
    """With this seed an evaluator is struck, and a service."""
    found = rows_of("--kills", "2", "--repeats", "0", "--seed", "13", "--compiled", compiled)
    assert {key for key, (times, *_) in found.items() if times} - {("none", "evaluator"), ("none", "service")} == {
        ("candidate rank killed", "evaluator"),
        ("reference rank killed", "service"),
    }
