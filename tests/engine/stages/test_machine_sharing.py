"""Two evaluators of one machine: whoever measures has it to itself, and does not wait for ever."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pkb_gym.engine.stages.machine_sharing import ahead_of_work, beside_others_at_once, work_beside_others
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.engine.stages.time import machine_to_itself

pytestmark = pytest.mark.usefixtures("locks_apart")


def unheard(words: str) -> None:
    """Progress that nobody follows."""


class Somebody:
    """Another evaluator: locks of this process's other threads are as foreign as those of other processes."""

    def __init__(self, *needs: AbstractContextManager[None]) -> None:
        self.has_it, self._done, self._needs = threading.Event(), threading.Event(), needs
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for need in self._needs:
            need.__enter__()
        self.has_it.set()
        self._done.wait(30)
        for need in reversed(self._needs):
            need.__exit__(None, None, None)

    def waits(self) -> bool:
        return not self.has_it.wait(0.1)

    def leave(self) -> None:
        self._done.set()
        self._thread.join(10)


def assert_that_work_waits_for_a_measurement() -> None:
    measures = Somebody(ahead_of_work(unheard), machine_to_itself())
    assert measures.has_it.wait(10)
    works = Somebody(work_beside_others(unheard))
    assert works.waits()
    measures.leave()
    assert works.has_it.wait(10)
    works.leave()


def test_work_goes_on_side_by_side() -> None:
    first, second = Somebody(work_beside_others(unheard)), Somebody(work_beside_others(unheard))
    assert first.has_it.wait(10) and second.has_it.wait(10)
    first.leave()
    second.leave()


def test_work_that_can_be_put_off_is_not_begun_while_somebody_measures_or_waits_to() -> None:
    with work_beside_others(unheard), beside_others_at_once() as begins:
        assert begins
        measures = Somebody(ahead_of_work(unheard), machine_to_itself())
        assert measures.waits(), "for both of them"
        with beside_others_at_once() as later:
            assert not later
    assert measures.has_it.wait(10)
    with beside_others_at_once() as later:
        assert not later
    measures.leave()
    with beside_others_at_once() as later:
        assert later


def test_nobody_works_while_somebody_measures() -> None:
    """Compilers and checks of another evaluator ran beside timed blocks."""
    assert_that_work_waits_for_a_measurement()


def test_a_measurement_that_waits_goes_ahead_of_later_work() -> None:
    earlier = Somebody(work_beside_others(unheard))
    assert earlier.has_it.wait(10)
    measures = Somebody(ahead_of_work(unheard), machine_to_itself())
    assert measures.waits()
    time.sleep(0.05)
    later = Somebody(work_beside_others(unheard))
    assert later.waits()
    earlier.leave()
    assert measures.has_it.wait(10) and later.waits()
    measures.leave()
    assert later.has_it.wait(10)
    later.leave()


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
    measures = Somebody(ahead_of_work(heard.append), machine_to_itself())
    assert measures.has_it.wait(10) and heard == [], "nobody was in its way"
    works = Somebody(work_beside_others(heard.append, "check"))
    assert works.waits() and heard == [WAITING]
    measures.leave()
    assert works.has_it.wait(10) and heard == [WAITING, "check"]
    later = Somebody(ahead_of_work(heard.append), machine_to_itself())
    assert later.waits() and heard == [WAITING, "check", WAITING]
    works.leave()
    assert later.has_it.wait(10)
    later.leave()
