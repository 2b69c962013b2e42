"""Gangs that stand by, and how preparing them stays out of the way of timings; the gangs are stand-ins."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import arbiter as arbiter_module
from pkb_gym.engine.evaluators import standby
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.standby import Standby
from pkb_gym.engine.stages.machine_sharing import machine_to_itself
from tests.engine.evaluators.threads import A_MOMENT_S, in_thread, joined
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("locks_apart")


class FakeGang:
    def __init__(self, number: int, *, close_fails: bool = False) -> None:
        self.number, self.closed, self._close_fails = number, 0, close_fails
        self.is_whole = True

    def close(self) -> None:
        self.closed += 1
        if self._close_fails:
            raise OSError("it would not end")


class Maker:
    """Starts stand-ins; `gate` holds each start up, `error` makes it fail."""

    def __init__(self) -> None:
        self.gangs: list[FakeGang] = []
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.failed = self.running = self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self) -> FakeGang:
        with self._lock:
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        assert self.gate.wait(PATIENCE_S)
        with self._lock:
            self.running -= 1
            if self.error is not None:
                self.failed += 1
                raise self.error
            self.gangs.append(FakeGang(len(self.gangs)))
            return self.gangs[-1]


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def arbiter() -> DeviceArbiter:
    return DeviceArbiter()


@contextlib.contextmanager
def stock(maker: Maker, arbiter: DeviceArbiter, size: int = 4) -> Iterator[Standby]:
    stock = Standby(maker, arbiter, size)  # type: ignore[arg-type]
    try:
        yield stock
    finally:
        stock.close()


def test_a_prepared_gang_is_handed_over_once_and_stays_open(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter) as gangs:
        until(lambda: len(maker.gangs) == 4)
        until(lambda: len(gangs._gangs) == 4)
        first, second = gangs.take(), gangs.take()
        assert first is not second and {first, second} <= set(maker.gangs[:4])
    assert (first.closed, second.closed) == (0, 0), "they are the taker's"
    assert all(gang.closed == 1 for gang in maker.gangs if gang not in (first, second))


def test_a_gang_that_fell_while_it_stood_by_is_ended_and_not_handed_over(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter) as gangs:
        until(lambda: len(gangs._gangs) == 4)
        failed_gang = gangs._gangs[-1]
        failed_gang.is_whole = False  # type: ignore[misc]
        assert gangs.take() is not failed_gang
        assert failed_gang.closed == 1


def test_it_is_refilled_once_half_are_left_and_not_before(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter) as gangs:
        until(lambda: len(gangs._gangs) == 4)
        gangs.take()
        time.sleep(A_MOMENT_S)
        assert len(maker.gangs) == 4, "three of four are enough"
        gangs.take()
        until(lambda: len(gangs._gangs) == 4)
        assert len(maker.gangs) == 6


def test_a_stock_of_one_is_refilled_when_it_is_empty(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter, size=1) as gangs:
        for made in (1, 2, 3):
            until(lambda made=made: len(gangs._gangs) == 1 and len(maker.gangs) == made)
            gangs.take()


def test_missing_gangs_are_prepared_one_after_the_other(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter) as gangs:
        until(lambda: len(gangs._gangs) == 4)
    assert maker.most_at_once == 1


def test_a_timing_waits_for_one_of_the_missing_gangs_at_most(maker: Maker, arbiter: DeviceArbiter) -> None:
    maker.gate.clear()
    with stock(maker, arbiter) as gangs:
        until(lambda: maker.running == 1)
        timing = arbiter.timing()
        timer = in_thread(timing.__enter__)
        until(lambda: arbiter._waiting == 1)
        maker.gate.set()
        joined(timer)
        time.sleep(A_MOMENT_S)
        assert len(gangs._gangs) == 1
        timing.__exit__(None, None, None)
        until(lambda: len(gangs._gangs) == 4)


def test_none_is_begun_while_a_candidate_is_checked_and_closing_does_not_wait(
    maker: Maker, arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stock(maker, arbiter, size=1) as gangs:
        until(lambda: len(gangs._gangs) == 1)
        monkeypatch.setattr(arbiter_module, "JUST_TAKEN_S", -1.0)
        assert arbiter.acquire()
        gangs.take()
        time.sleep(A_MOMENT_S)
        assert len(maker.gangs) == 1
        arbiter.release()
        until(lambda: len(gangs._gangs) == 1)
        assert arbiter.acquire()
        gangs.take()
        assert gangs.take() is maker.gangs[2], "it is made at once for the candidate itself"
    assert len(maker.gangs) == 3, "the stock was closed by who has the devices"


def test_none_is_prepared_while_another_evaluator_measures(maker: Maker, arbiter: DeviceArbiter) -> None:
    measuring = machine_to_itself(lambda _: None)
    measuring.__enter__()
    with stock(maker, arbiter, size=1) as gangs:
        taken: list[FakeGang] = []
        taker = in_thread(lambda: taken.append(gangs.take()))
        time.sleep(2 * standby.PUT_OFF_S)
        assert not maker.gangs and not taken
        with arbiter.timing():
            pass  # what is put off holds no other up
        measuring.__exit__(None, None, None)
        joined(taker)
        until(lambda: len(gangs._gangs) == 1)
    assert len(maker.gangs) == 2 and [gang.closed for gang in taken] == [0]


def test_closing_does_not_wait_for_another_evaluator(
    maker: Maker, arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "PUT_OFF_S", 10 * PATIENCE_S)
    with machine_to_itself(lambda _: None), stock(maker, arbiter):
        time.sleep(A_MOMENT_S)
        began = time.monotonic()
    assert not maker.gangs and time.monotonic() - began < PATIENCE_S


def test_a_stock_of_none_makes_each_when_it_is_taken_and_rests_otherwise(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter, size=0) as gangs:
        assert [gangs.take() for _ in range(2)] == maker.gangs
        before = time.process_time()
        time.sleep(A_MOMENT_S)
        assert time.process_time() - before < A_MOMENT_S / 2
    assert len(maker.gangs) == 2 and not any(gang.closed for gang in maker.gangs), "they are the taker's"


def test_one_is_made_at_once_where_none_stands_by(maker: Maker, arbiter: DeviceArbiter) -> None:
    maker.gate.clear()
    with stock(maker, arbiter) as gangs:
        until(lambda: maker.running == 1)
        taken: list[FakeGang] = []
        taker = in_thread(lambda: taken.append(gangs.take()))
        until(lambda: maker.running == 2)
        maker.gate.set()
        joined(taker)
        until(lambda: len(gangs._gangs) == 4)
    assert [gang.closed for gang in taken] == [0]
    assert sum(gang.closed for gang in maker.gangs) == 4


@pytest.mark.parametrize("error", [InfrastructureError("no memory left"), OSError("too many open files")], ids=type)
def test_a_failing_start_is_logged_and_tried_again_later(
    maker: Maker,
    arbiter: DeviceArbiter,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(standby, "RETRY_S", 0.02)
    maker.error = error
    with caplog.at_level(logging.WARNING), stock(maker, arbiter) as gangs:
        until(lambda: maker.failed >= 8)
        assert f"no gang could be prepared to stand by: {error}" in caplog.messages
        maker.error = None
        until(lambda: len(gangs._gangs) == 4)
        assert gangs.take() in maker.gangs


def test_it_rests_after_a_failure(maker: Maker, arbiter: DeviceArbiter) -> None:
    maker.error = InfrastructureError("no memory left")
    with stock(maker, arbiter):
        until(lambda: maker.failed == 1)
        time.sleep(A_MOMENT_S)
        assert maker.failed == 1, "it would otherwise try without end"
        began = time.monotonic()
    assert time.monotonic() - began < standby.RETRY_S / 2, "closing does not wait for the next try"


def test_a_failed_preparation_raises_its_error_for_the_next_evaluation(maker: Maker, arbiter: DeviceArbiter) -> None:
    maker.error = InfrastructureError("no memory left")
    with stock(maker, arbiter) as gangs:
        until(lambda: maker.failed == 1)
        with pytest.raises(InfrastructureError, match="no memory left"):
            gangs.take()
        with arbiter.timing():
            pass  # the failure left the devices


def test_those_that_could_be_prepared_are_kept(
    maker: Maker, arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second fails."""
    monkeypatch.setattr(standby, "RETRY_S", 0.001)
    calls = itertools.count()

    def start() -> FakeGang:
        if next(calls) % 2:
            raise InfrastructureError("no memory left")
        return maker()

    gangs = Standby(start, arbiter, 4)  # type: ignore[arg-type]
    until(lambda: len(gangs._gangs) == 4)
    gangs.close()
    assert [gang.closed for gang in maker.gangs] == [1] * 4


def test_a_gang_that_was_being_prepared_when_it_closed_is_ended(maker: Maker, arbiter: DeviceArbiter) -> None:
    maker.gate.clear()
    gangs = Standby(maker, arbiter, 4)  # type: ignore[arg-type]
    until(lambda: maker.running == 1)
    closer = in_thread(gangs.close)
    until(lambda: gangs._closed)
    maker.gate.set()
    joined(closer)
    assert [gang.closed for gang in maker.gangs] == [1]


def test_nothing_is_prepared_once_it_is_closed(maker: Maker, arbiter: DeviceArbiter) -> None:
    with arbiter.timing():
        gangs = Standby(maker, arbiter, 4)  # type: ignore[arg-type]
        until(lambda: arbiter._changed._waiters)
        closer = in_thread(gangs.close)
        until(lambda: gangs._closed)
    joined(closer)
    assert maker.gangs == [], "it waited for the timing, and was closed meanwhile"
    assert not gangs._thread.is_alive()


def test_closing_again_changes_nothing(maker: Maker, arbiter: DeviceArbiter) -> None:
    with stock(maker, arbiter) as gangs:
        until(lambda: len(gangs._gangs) == 4)
        gangs.close()
    assert [gang.closed for gang in maker.gangs] == [1] * 4


def test_all_are_ended_even_if_ending_one_fails(arbiter: DeviceArbiter) -> None:
    made = [FakeGang(number, close_fails=number == 1) for number in range(4)]
    rest = iter(made)
    gangs = Standby(lambda: next(rest), arbiter, 4)  # type: ignore[arg-type, return-value]
    until(lambda: len(gangs._gangs) == 4)
    with pytest.raises(OSError, match="would not end"):
        gangs.close()
    assert [gang.closed for gang in made] == [1] * 4


def test_no_taker_gets_a_gang_that_was_ended(maker: Maker, arbiter: DeviceArbiter) -> None:
    for _ in range(20):
        gangs = Standby(maker, arbiter, 4)  # type: ignore[arg-type]
        until(lambda gangs=gangs: gangs._gangs)
        taken: list[FakeGang] = []
        takers = [in_thread(lambda gangs=gangs, taken=taken: taken.append(gangs.take())) for _ in range(6)]
        gangs.close()
        for taker in takers:
            joined(taker)
        assert len(set(taken)) == 6
        assert [gang.closed for gang in taken] == [0] * 6


def test_what_fails_once_it_was_stopped_is_no_news(
    maker: Maker, arbiter: DeviceArbiter, caplog: pytest.LogCaptureFixture
) -> None:
    maker.gate.clear()
    with stock(maker, arbiter) as gangs, caplog.at_level(logging.WARNING):
        until(lambda: maker.running == 1)
        gangs.stop()
        maker.error = InfrastructureError("the zygote is gone")
        maker.gate.set()
        until(lambda: maker.failed == 1)
    assert not caplog.records
    assert not maker.gangs
