"""Who may use the devices: candidates one at a time, preparations and timings apart, nobody in a pause."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pkb_gym.engine.evaluators import arbiter as module
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from tests.engine.evaluators.threads import A_MOMENT_S, Visitor, in_thread, joined
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def arbiter() -> DeviceArbiter:
    return DeviceArbiter()


@contextlib.contextmanager
def candidate(arbiter: DeviceArbiter) -> Iterator[None]:
    """Has the devices."""
    assert arbiter.acquire()
    try:
        yield
    finally:
        arbiter.release()


def test_one_candidate_at_a_time(arbiter: DeviceArbiter) -> None:
    first, second = Visitor(candidate(arbiter)), Visitor(candidate(arbiter))
    until(lambda: first.inside.is_set() or second.inside.is_set())
    earlier, later = (first, second) if first.inside.is_set() else (second, first)
    assert later.is_kept_out
    earlier.leave()
    assert later.came_in
    later.leave()


def test_an_entry_without_waiting_is_refused(arbiter: DeviceArbiter) -> None:
    assert arbiter.acquire(blocking=False)
    assert not arbiter.acquire(blocking=False)
    arbiter.release()
    assert arbiter.acquire(blocking=False)
    arbiter.release()


def test_a_pause_waits_for_who_is_inside_and_keeps_others_out(arbiter: DeviceArbiter) -> None:
    inside = Visitor(candidate(arbiter))
    assert inside.came_in
    assert not arbiter.pause(A_MOMENT_S)
    late = Visitor(candidate(arbiter))
    inside.leave()
    assert arbiter.pause(PATIENCE_S) and late.is_kept_out
    assert not arbiter.acquire(blocking=False)
    arbiter.resume()
    assert late.came_in
    late.leave()
    assert arbiter.acquire(blocking=False)
    assert not arbiter.acquire(blocking=False)
    arbiter.release()


def test_nobody_comes_in_though_the_pause_could_not_wait(arbiter: DeviceArbiter) -> None:
    inside = Visitor(candidate(arbiter))
    assert inside.came_in and not arbiter.pause(0)
    inside.leave()
    assert not arbiter.acquire(blocking=False)
    arbiter.resume()
    assert arbiter.acquire(blocking=False)
    arbiter.release()


def test_no_preparation_begins_in_a_pause_and_timings_do(arbiter: DeviceArbiter) -> None:
    begun = Visitor(arbiter.preparing())
    assert begun.came_in
    assert not arbiter.pause(A_MOMENT_S), "one has begun"
    begun.leave()
    assert arbiter.pause(PATIENCE_S)
    late = Visitor(arbiter.preparing())
    with arbiter.timing():
        assert late.is_kept_out
    arbiter.resume()
    assert late.came_in
    late.leave()


def test_a_pause_keeps_candidates_out_first_and_preparations_afterwards(arbiter: DeviceArbiter) -> None:
    """The candidate that has the devices may still need a gang; else both would wait for each other."""
    inside = Visitor(candidate(arbiter))
    assert inside.came_in
    paused: list[bool] = []
    pausing = in_thread(lambda: paused.append(arbiter.pause()))
    until(lambda: not arbiter.acquire(blocking=False) and arbiter._shut)
    prepared = Visitor(arbiter.preparing())
    assert prepared.came_in, "its gang"
    prepared.leave()
    ending = Visitor(arbiter.preparing())
    assert ending.came_in and paused == []
    inside.leave()
    time.sleep(A_MOMENT_S)
    assert paused == [], "what is ended in the background is waited for"
    late = Visitor(arbiter.preparing())
    assert late.is_kept_out
    ending.leave()
    joined(pausing)
    assert paused == [True] and late.is_kept_out
    arbiter.resume()
    assert late.came_in
    late.leave()


def test_one_limit_is_for_the_whole_of_a_pause(arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of those that it waits for."""
    now_s, limits_s = [100.0], []

    def wait_for(condition: object, timeout_s: float) -> bool:
        limits_s.append(timeout_s)
        now_s[0] += 4
        return True

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(arbiter._changed, "wait_for", wait_for)
    assert arbiter.pause(6.0) and arbiter.pause(3.0) and arbiter.pause(None)
    assert limits_s == [6.0, 2.0, 3.0, 0.0, None, None]


def test_a_pause_and_its_end_can_be_repeated(arbiter: DeviceArbiter) -> None:
    assert arbiter.pause() and arbiter.pause(0)
    arbiter.resume()
    arbiter.resume()
    with candidate(arbiter), arbiter.preparing():
        pass


def test_a_pause_that_ends_while_somebody_waits_for_it(arbiter: DeviceArbiter) -> None:
    inside = Visitor(candidate(arbiter))
    assert inside.came_in
    paused: list[bool] = []
    pausing = in_thread(lambda: paused.append(arbiter.pause(PATIENCE_S)))
    until(lambda: arbiter._shut)
    arbiter.resume()
    inside.leave()
    joined(pausing)
    assert paused == [True]


def test_candidates_are_checked_beside_each_other_and_never_beside_a_timing(arbiter: DeviceArbiter) -> None:
    with candidate(arbiter):
        first, second = Visitor(arbiter.checking()), Visitor(arbiter.checking())
        assert first.came_in and second.came_in
        timing = Visitor(arbiter.timing())
        assert timing.is_kept_out
        late = Visitor(arbiter.checking())
        first.leave()
        assert late.is_kept_out, "a timing that waits goes first"
        second.leave()
        assert timing.came_in and late.is_kept_out
        timing.leave()
        assert late.came_in
        late.leave()


def test_a_candidate_that_is_checked_prepares_though_a_timing_waits(arbiter: DeviceArbiter) -> None:
    """Each waited for the other: the timing for the check, and the check's gang for the timing."""
    with arbiter.checking() as begins:
        assert begins
        timing = Visitor(arbiter.timing())
        until(lambda: arbiter._waiting == 1)
        others = Visitor(arbiter.preparing())
        assert others.is_kept_out
        with arbiter.preparing():
            assert timing.is_kept_out
        ending = arbiter.preparing()
        ending.__enter__()
    assert timing.is_kept_out, "its gang is ended in the background"
    ending.__exit__(None, None, None)
    assert timing.came_in and others.is_kept_out
    timing.leave()
    assert others.came_in
    others.leave()
    with arbiter.timing():
        late = Visitor(arbiter.preparing())
        assert late.is_kept_out, "the thread checks no more"
    assert late.came_in
    late.leave()


def test_no_check_begins_in_a_pause_which_waits_for_those_that_run(arbiter: DeviceArbiter) -> None:
    with arbiter.checking():
        assert not arbiter.pause(A_MOMENT_S) and arbiter.is_paused
    assert arbiter.pause(PATIENCE_S)
    with arbiter.checking() as begins:
        assert not begins
    resumed = in_thread(arbiter.wait_for_resume)
    resumed.join(A_MOMENT_S)
    assert resumed.is_alive()
    arbiter.resume()
    joined(resumed)
    with arbiter.checking() as begins:
        assert begins


def test_preparing_waits_for_a_timing(arbiter: DeviceArbiter) -> None:
    with arbiter.timing():
        preparing = Visitor(arbiter.preparing())
        assert preparing.is_kept_out
    assert preparing.came_in
    preparing.leave()


def test_a_timing_waits_for_all_preparations(arbiter: DeviceArbiter) -> None:
    with arbiter.preparing():
        with arbiter.preparing():  # several at once
            timing = Visitor(arbiter.timing())
            assert timing.is_kept_out
        assert timing.is_kept_out
    assert timing.came_in
    timing.leave()


def test_timings_exclude_each_other(arbiter: DeviceArbiter) -> None:
    with arbiter.timing():
        other = Visitor(arbiter.timing())
        assert other.is_kept_out
    assert other.came_in
    other.leave()


def test_a_timing_that_waits_goes_before_new_preparations(arbiter: DeviceArbiter) -> None:
    order: list[str] = []

    def note(what: str) -> None:
        with arbiter.timing() if what == "timed" else arbiter.preparing():
            order.append(what)

    with arbiter.preparing():
        timing = in_thread(lambda: note("timed"))
        until(lambda: arbiter._waiting == 1)
        preparing = in_thread(lambda: note("prepared"))
        time.sleep(A_MOMENT_S)
        assert order == [], "else preparations without end would keep a timing waiting"
    joined(timing)
    joined(preparing)
    assert order == ["timed", "prepared"]


def test_who_has_the_devices_keeps_nobody_from_preparing(arbiter: DeviceArbiter) -> None:
    with candidate(arbiter):
        with arbiter.preparing():
            pass
        with arbiter.timing():
            pass


@contextlib.contextmanager
def ahead(arbiter: DeviceArbiter, wanted: list[bool] | None = None) -> Iterator[None]:
    """Prepares for later candidates; what has become of it is appended."""
    answers = [] if wanted is None else wanted
    with arbiter.preparing_ahead(lambda: not answers or answers[0]) as begins:
        answers.append(begins)
        yield


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The arbiter's clock, in seconds."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_gangs_for_later_are_begun_before_a_candidate_or_together_with_it(
    arbiter: DeviceArbiter, now: list[float]
) -> None:
    """One that is begun while it is checked would not be ready when it is to be timed."""
    with ahead(arbiter):
        pass
    with candidate(arbiter):
        with ahead(arbiter):
            pass
        now[0] += 1.01 * module.JUST_TAKEN_S
        late = Visitor(ahead(arbiter))
        assert late.is_kept_out
        with arbiter.preparing():
            pass  # the candidate's own is not kept waiting
    assert late.came_in
    late.leave()


def test_the_next_candidate_lets_one_in_too(arbiter: DeviceArbiter, now: list[float]) -> None:
    with candidate(arbiter):
        now[0] += 2 * module.JUST_TAKEN_S
        late = Visitor(ahead(arbiter))
        next_one = Visitor(candidate(arbiter))
        assert late.is_kept_out
    assert late.came_in and next_one.came_in
    next_one.leave()
    late.leave()


def test_gangs_for_later_wait_for_timings_and_pauses_as_others_do(arbiter: DeviceArbiter) -> None:
    with arbiter.timing():
        timed = Visitor(ahead(arbiter))
        assert timed.is_kept_out
    assert timed.came_in
    waiting = Visitor(arbiter.timing())
    assert waiting.is_kept_out
    timed.leave()
    assert waiting.came_in
    waiting.leave()
    assert arbiter.pause(PATIENCE_S)
    paused = Visitor(ahead(arbiter))
    assert paused.is_kept_out
    arbiter.resume()
    assert paused.came_in
    paused.leave()


def test_one_that_is_not_wanted_any_more_is_not_waited_for(arbiter: DeviceArbiter, now: list[float]) -> None:
    with candidate(arbiter):
        now[0] += 2 * module.JUST_TAKEN_S
        wanted = [True]
        late = Visitor(ahead(arbiter, wanted))
        assert late.is_kept_out
        wanted[0] = False
        arbiter.look_again()
        assert late.came_in and wanted == [False, False]
        with arbiter.timing():
            pass  # it counts for nothing
        late.leave()


def test_an_error_inside_leaves_the_devices(arbiter: DeviceArbiter) -> None:
    for hold in (arbiter.timing, arbiter.preparing, arbiter.checking, lambda: ahead(arbiter)):
        with pytest.raises(KeyError), hold():
            raise KeyError
    with arbiter.timing():
        pass
    with arbiter.preparing():
        pass


def test_a_timing_that_is_interrupted_while_it_waits_holds_nobody_up(
    arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with arbiter.preparing():
        monkeypatch.setattr(arbiter._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), arbiter.timing():
            pytest.fail("it was not its turn")
        monkeypatch.undo()
        joined(in_thread(arbiter.preparing().__enter__))
