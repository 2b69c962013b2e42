"""The background evaluator as a process: who starts it, who finds it, and how it ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from pkb_gym.cli.evaluate import STARTING_COMMAND
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support import problem_folders
from pkb_gym.problems.catalogue import choose_problem, find_problem
from pkb_gym.rewards.examples import failed
from pkb_gym.serve import background
from pkb_gym.serve.background import STARTING, BackgroundEvaluator, running, stop
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import ON_TWO, Owners, make_service
from tests.waiting import PATIENCE_S, until

PROBLEM = find_problem("AllReduce")
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", until="compile")
OWN = Path(__file__).resolve().parents[2] / "docs/own_problem/my_pkb_problems/sharded_softmax"
SOURCE = "void solution() {"
PKB = (sys.executable, "-m", "pkb_gym.cli")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of the sockets; every evaluator in it is ended."""
    path = tmp_path / "run"
    yield path
    for each in running(path):
        assert stop(each)


def opened(folder: Path, idle_s: float = 600) -> BackgroundEvaluator:
    return BackgroundEvaluator(b"key", folder, idle_s)


def ended(pid: int) -> bool:
    """Whether a process has ended; one of ours is reaped."""
    try:
        psutil.Process(pid).wait(PATIENCE_S)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        return False
    return True


def test_commands_at_once_start_one_and_a_killed_one_is_started_anew(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # its ready line came in two pieces then, and it died at the second
    with ThreadPoolExecutor(2) as threads, opened(folder) as one, opened(folder) as other:
        both = [threads.submit(each.evaluate, PROBLEM, SOURCE, CONFIG) for each in (one, other)]
        assert [each.result(PATIENCE_S).failure for each in both] == [Failure.COMPILE_ERROR] * 2
        assert STARTING in both[0].result().durations_s and STARTING in both[1].result().durations_s
        (first,) = running(folder)
        assert first.is_idle and first.status is not None and first.status.finished == 2
        assert STARTING not in one.evaluate(PROBLEM, SOURCE, CONFIG).durations_s
        large = CONFIG.model_copy(update={"size": {"M": 1 << 20, "N": 1}, "timeout_s": 3600.0})
        assert one.evaluate(PROBLEM, SOURCE, large).failure is Failure.COMPILE_ERROR, "no less than without it"

        os.kill(first.pid, signal.SIGKILL)
        assert ended(first.pid) and first.socket.exists()
        assert one.evaluate(PROBLEM, SOURCE, CONFIG).durations_s[STARTING] > 0
        (second,) = running(folder)
        assert second.pid != first.pid and stop(second)
        assert ended(second.pid) and not list(running(folder))


def test_one_that_somebody_stops_in_between_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """It answers what it has in hand by an infrastructure failure; here in one process, which ends when told to."""
    owners, services = Owners(), []

    def serve(evaluator: BackgroundEvaluator) -> None:
        services.append(resources.enter_context(make_service(owners, takes_keys=True)))
        token = (folder / "token").read_text().strip()
        resources.enter_context(HttpServer(services[-1], token, path=evaluator._socket))

    monkeypatch.setattr(background, "listener_pid", lambda path: len(services) if path.exists() else None)
    monkeypatch.setattr(BackgroundEvaluator, "_start", serve)
    with ExitStack() as resources, ThreadPoolExecutor(1) as threads, opened(folder) as evaluator:
        asked = threads.submit(evaluator.evaluate, PROBLEM, "run", ON_TWO)
        until(lambda: asked.done() or (services and services[0].status().running))
        evaluator._socket.unlink()  # both as `pkb serve` when it is told to end
        services[0].close()
        until(lambda: asked.done() or len(owners.opened) == 2)
        assert not asked.done(), asked.result()
        owners.opened[1].goes_on.set()
        feedback = asked.result(PATIENCE_S)
    assert feedback.passed and feedback.durations_s[STARTING] > 0 and len(services) == 2


class Ending:
    """A service that ends in the middle of each of its first evaluations."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.times, self.error, self.asked = times, error, 0

    def evaluate(self, *_: object) -> Feedback:
        self.asked += 1
        if self.asked <= self.times:
            if self.error is not None:
                raise self.error
            return failed("infrastructure", message="the service was closed")
        return failed("race")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("times", "asked", "failure"), [(0, 1, "race"), (2, 3, "race"), (9, background.MAX_STARTS, "infrastructure")]
)
def test_evaluators_that_end_again_and_again_are_asked_so_often(folder, monkeypatch, times, asked, failure):
    pids = itertools.count()
    with opened(folder) as evaluator:
        evaluator._remote = remote = Ending(times)
        monkeypatch.setattr(background, "listener_pid", lambda _: next(pids))
        assert evaluator.evaluate(PROBLEM, SOURCE, CONFIG).failure == failure and remote.asked == asked
        monkeypatch.setattr(background, "listener_pid", lambda _: 1)
        evaluator._remote = remote = Ending(1)
        assert evaluator.evaluate(PROBLEM, SOURCE, CONFIG).failure == "infrastructure", "a failure of its own"
        evaluator._remote = remote = Ending(1, InfrastructureError("it does not answer"))
        with pytest.raises(InfrastructureError, match="does not answer"):
            evaluator.evaluate(PROBLEM, SOURCE, CONFIG)
        monkeypatch.undo()


def test_a_problem_of_ones_own_has_its_own_and_it_ends_when_idle(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with opened(folder, idle_s=600) as evaluator:
        evaluator.evaluate(PROBLEM, SOURCE, CONFIG)
    (first,) = running(folder)
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})
    problem = choose_problem(OWN)
    with opened(folder, idle_s=5) as evaluator:
        assert evaluator.evaluate(problem, SOURCE, CONFIG).problem == "ShardedSoftmax"
        assert ended(first.pid), "it had nothing to do, and would only keep memory"
        for second in running(folder):
            assert second.socket != first.socket and ended(second.pid)
        assert not list(running(folder))
        assert [log.suffix for log in folder.glob("*.log")] == [".log"], "that of the last one, for whoever asks why"


def test_one_that_cannot_be_started_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "_PROGRAM", "raise SystemExit('no memory left')")
    with opened(folder) as evaluator, pytest.raises(InfrastructureError, match=r"--fresh does without one\W+no memory"):
        evaluator.evaluate(PROBLEM, SOURCE, CONFIG)


def test_a_folder_of_everybody_is_refused(folder: Path):
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="nobody else can enter"):
        opened(folder)


def test_pkb_eval_uses_it_and_loads_nothing_heavy(folder: Path, tmp_path: Path):
    """The second command took as long as the first, most of it for torch in three processes."""
    (tmp_path / "kernel.cpp").write_text(SOURCE)
    environment = {**os.environ, "PKB_EVALUATOR": "background", "PKB_RUNTIME_DIR": str(folder)}

    def pkb(*words: str, python: tuple[str, ...] = PKB) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*python, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

    words = ("eval", "AllReduce", str(tmp_path / "kernel.cpp"), "--device", "cpu", "--until", "compile")
    began = time.monotonic()
    first = pkb(*words, "--json")
    took_s = time.monotonic() - began
    assert first.returncode == 1, first.stderr
    durations_s = json.loads(first.stdout)["durations_s"]
    assert durations_s[STARTING] > 0 and sum(durations_s.values()) < took_s
    assert durations_s[STARTING_COMMAND] > 0, "Python's imports were in no duration"

    second = pkb(*words, python=(sys.executable, "-X", "importtime", *PKB[1:]))
    assert second.returncode == 1 and "compile_error" in second.stdout and STARTING not in second.stderr
    imported = {line.rpartition("|")[2].strip() for line in second.stderr.splitlines() if "|" in line}
    assert "http.client" in imported and not imported & {"torch", "gymnasium", "numpy", "httpx", "fastapi", "uvicorn"}

    fresh = pkb(*words, "--fresh", "--json")
    assert fresh.returncode == 1 and not {STARTING, "asking the evaluator"} & set(
        json.loads(fresh.stdout)["durations_s"]
    )

    assert "idle, 2 evaluations in" in pkb("evaluator", "status").stdout
    assert "has ended" in pkb("evaluator", "stop").stdout
    assert pkb("evaluator", "status").stdout == "no background evaluator runs\n"
