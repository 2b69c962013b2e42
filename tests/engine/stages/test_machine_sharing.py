"""Two evaluators of one machine: whoever measures has it to itself, and does not wait for ever."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.machine_sharing import beside_others_at_once, machine_to_itself, work_beside_others
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.engine.stages.time import measured_overhead
from tests.engine.stages.fake_gangs import Bench
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("locks_apart")


def unheard(words: str) -> None:
    """Progress that nobody follows."""


class Somebody:
    """Another evaluator: locks of this process's other threads are as foreign as those of other processes."""

    def __init__(self, need: AbstractContextManager[None]) -> None:
        self.has_it, self._done, self._need = threading.Event(), threading.Event(), need
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._need:
            self.has_it.set()
            self._done.wait(PATIENCE_S)

    def waits(self) -> bool:
        return not self.has_it.wait(0.1)

    def leave(self) -> None:
        self._done.set()
        self._thread.join(PATIENCE_S)


def assert_that_work_waits_for_a_measurement() -> None:
    measures = Somebody(machine_to_itself(unheard))
    assert measures.has_it.wait(PATIENCE_S)
    works = Somebody(work_beside_others(unheard))
    assert works.waits()
    measures.leave()
    assert works.has_it.wait(PATIENCE_S)
    works.leave()


def test_work_goes_on_side_by_side() -> None:
    first, second = Somebody(work_beside_others(unheard)), Somebody(work_beside_others(unheard))
    assert first.has_it.wait(PATIENCE_S) and second.has_it.wait(PATIENCE_S)
    first.leave()
    second.leave()


def test_work_that_can_be_put_off_is_not_begun_while_somebody_measures_or_waits_to() -> None:
    with work_beside_others(unheard), beside_others_at_once() as begins:
        assert begins
        measures = Somebody(machine_to_itself(unheard))
        assert measures.waits(), "for both of them"
        with beside_others_at_once() as later:
            assert not later
    assert measures.has_it.wait(PATIENCE_S)
    with beside_others_at_once() as later:
        assert not later
    measures.leave()
    with beside_others_at_once() as later:
        assert later


def test_nobody_works_while_somebody_measures() -> None:
    """Compilers and checks of another evaluator ran beside timed blocks."""
    assert_that_work_waits_for_a_measurement()


def test_one_evaluator_at_a_time_has_the_machine() -> None:
    """Whichever process it is in."""
    lock = f"fcntl.flock(os.open({tempfile.gettempdir()!r}, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with machine_to_itself(unheard):
        other = subprocess.run([sys.executable, "-c", f"import fcntl, os; {lock}"], capture_output=True, check=False)
    assert other.returncode != 0 and b"BlockingIOError" in other.stderr


def test_a_measurement_that_waits_goes_ahead_of_later_work() -> None:
    earlier = Somebody(work_beside_others(unheard))
    assert earlier.has_it.wait(PATIENCE_S)
    measures = Somebody(machine_to_itself(unheard))
    assert measures.waits()
    time.sleep(0.05)
    later = Somebody(work_beside_others(unheard))
    assert later.waits()
    earlier.leave()
    assert measures.has_it.wait(PATIENCE_S) and later.waits()
    measures.leave()
    assert later.has_it.wait(PATIENCE_S)
    later.leave()


def test_who_works_already_goes_on_though_a_measurement_waits() -> None:
    with work_beside_others(unheard):
        measures = Somebody(machine_to_itself(unheard))
        assert measures.waits()
        with work_beside_others(unheard):
            pass
        assert measures.waits(), "for the rest of the work"
    assert measures.has_it.wait(PATIENCE_S)
    works = Somebody(work_beside_others(unheard))
    assert works.waits()
    measures.leave()
    works.leave()


def test_the_folder_of_all_users_folders_may_be_closed_to_them(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pam_tmpdir closes `/tmp/user`: no evaluation of a user other than root got beyond its texts."""
    closed, opens = tmp_path / "user", os.open

    def opened(path: Path | str, *options: int) -> int:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return opens(path, *options)

    (closed / "1000").mkdir(parents=True)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(closed / "1000"))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    monkeypatch.setattr(os, "open", opened)
    assert_that_work_waits_for_a_measurement()


def test_a_wait_for_another_evaluator_is_reported() -> None:
    """The clock of a service ran meanwhile, and ended evaluations that had done nothing wrong."""
    heard: list[str] = []
    measures = Somebody(machine_to_itself(heard.append))
    assert measures.has_it.wait(PATIENCE_S) and heard == [], "nobody was in its way"
    works = Somebody(work_beside_others(heard.append, "check"))
    assert works.waits() and heard == [WAITING]
    measures.leave()
    assert works.has_it.wait(PATIENCE_S) and heard == [WAITING, "check"]
    later = Somebody(machine_to_itself(heard.append))
    assert later.waits() and heard == [WAITING, "check", WAITING]
    works.leave()
    assert later.has_it.wait(PATIENCE_S)
    later.leave()


def test_the_overhead_of_a_block_is_measured_ahead_of_later_work() -> None:
    """Beside two evaluators that checked one candidate after another, its measurement waited for up to a minute."""
    bench, heard = Bench(gpus=2), []
    earlier = Somebody(work_beside_others(unheard))
    assert earlier.has_it.wait(PATIENCE_S)

    def measure() -> None:
        with bench.run() as run:
            measured_overhead(run, BaselineCache(), contextlib.nullcontext, heard.append)

    measuring = threading.Thread(target=measure, daemon=True)
    measuring.start()
    until(lambda: heard == [WAITING])
    later = Somebody(work_beside_others(unheard))
    assert later.waits() and not bench.logged("null block")
    earlier.leave()
    measuring.join(PATIENCE_S)
    assert later.has_it.wait(PATIENCE_S) and bench.logged("null block") and heard == [WAITING, "check"]
    assert bench.feedback.stopwatch.readings()[WAITING] > 0.1
    later.leave()
