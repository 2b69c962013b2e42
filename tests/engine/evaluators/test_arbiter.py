"""The gate before the devices, and what an evaluator's pause keeps waiting; GPUs and gangs are stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pkb_gym.engine.evaluators.arbiter import DeviceGate
from pkb_gym.engine.evaluators.local import GangKind, LocalEvaluator
from pkb_gym.engine.evaluators.standby import QuietDevices
from tests.engine.evaluators.test_gang_pool import Evaluator, threads, until

PATIENCE_S = 10.0
A_MOMENT_S = 0.05
"""Long enough for a thread that is not held back to do what it must not."""


class Visitor:
    """Enters in a thread, and stays until told to leave."""

    def __init__(self, enter) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self._enter = enter
        self._thread = threading.Thread(target=self._visit)
        self._thread.start()

    def _visit(self) -> None:
        with self._enter:
            self.inside.set()
            assert self.leave.wait(PATIENCE_S)

    def go(self) -> None:
        self.leave.set()
        self._thread.join()


@pytest.fixture
def gate() -> Iterator[DeviceGate]:
    gate = DeviceGate()
    yield gate
    gate.open()


def test_one_at_a_time(gate):
    first, second = Visitor(gate), Visitor(gate)
    until(lambda: first.inside.is_set() or second.inside.is_set())
    assert not (first.inside.wait(A_MOMENT_S) and second.inside.wait(A_MOMENT_S))
    first.leave.set(), second.leave.set()
    first.go(), second.go()
    assert first.inside.is_set() and second.inside.is_set()


def test_shutting_waits_for_who_is_inside_and_keeps_others_out(gate):
    inside = Visitor(gate)
    assert inside.inside.wait(PATIENCE_S)
    assert not gate.shut(A_MOMENT_S)
    late = Visitor(gate)
    inside.go()
    assert gate.shut(PATIENCE_S) and not late.inside.wait(A_MOMENT_S)
    assert not gate.acquire(blocking=False)
    gate.open()
    assert late.inside.wait(PATIENCE_S)
    late.go()
    assert gate.acquire(blocking=False)
    assert not gate.acquire(blocking=False)
    gate.release()


def test_no_preparation_begins_in_a_pause_and_timings_do():
    quiet = QuietDevices()
    begun = Visitor(quiet.preparing())
    assert begun.inside.wait(PATIENCE_S)
    assert not quiet.pause(A_MOMENT_S), "one has begun"
    begun.go()
    assert quiet.pause(PATIENCE_S)
    late = Visitor(quiet.preparing())
    with quiet.timing():
        assert not late.inside.wait(A_MOMENT_S)
    quiet.resume()
    assert late.inside.wait(PATIENCE_S)
    late.go()


def test_gangs_do_not_stand_by_anew_in_a_pause(tmp_path):
    with Evaluator(tmp_path, standby_gangs=2) as evaluator:
        with evaluator.gang("cuda") as taken:
            until(lambda: len(evaluator.made) == 3)
        assert evaluator.pause(PATIENCE_S)
        assert taken.closed, "what ends in the background has ended"
        for _ in range(2):  # taken as a session would that had begun before
            assert evaluator._standby_for(evaluator.made[0].kind).take().kind == evaluator.made[0].kind
        made = len(evaluator.made)
        assert not threading.Event().wait(A_MOMENT_S) and len(evaluator.made) == made
        evaluator.resume()
        until(lambda: len(evaluator.made) == made + 2)


def test_closing_ends_a_pause(tmp_path):
    """Refilling waits for the end of the pause, and closing for refilling."""
    evaluator = Evaluator(tmp_path, standby_gangs=2)
    assert evaluator.pause()
    evaluator._standby_for(GangKind(2, join=False, allow_processes=False))
    until(lambda: threads("pkb-standby"))
    closing = threading.Thread(target=evaluator.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive() and not threads("pkb-standby")


def test_a_pause_and_its_end_can_be_repeated(tmp_path):
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        assert evaluator.pause() and evaluator.pause(0)
        evaluator.resume()
        evaluator.resume()
