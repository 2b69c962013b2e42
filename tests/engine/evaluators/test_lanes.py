"""Room for candidates beside each other."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.lanes import Lanes, Need
from tests.engine.evaluators.threads import Visitor, in_thread, joined

SMALL = Need(processors=2, nbytes=10)


def test_lanes_are_numbered_from_the_lowest_that_is_free():
    lanes = Lanes(processors=8)
    with lanes.taken(SMALL, 100) as first, lanes.taken(SMALL, 100) as second:
        assert (first, second) == (0, 1)
    first = lanes.taken(SMALL, 100)
    assert first.__enter__() == 0
    with lanes.taken(SMALL, 100) as second:
        assert second == 1
        first.__exit__(None, None, None)
        with lanes.taken(SMALL, 100) as again:
            assert again == 0


@pytest.mark.parametrize(
    ("need", "nbytes", "most"),
    [(Need(7, 10), 100, None), (Need(2, 91), 100, None), (SMALL, 100, 1)],
    ids=["processors", "memory", "number"],
)
def test_who_does_not_fit_waits_for_the_others(need: Need, nbytes: int, most: int | None):
    lanes = Lanes(processors=8)
    with lanes.taken(SMALL, nbytes):
        assert not lanes.is_free(need, nbytes, most)
        waiting = Visitor(lanes.taken(need, nbytes, most))
        assert waiting.is_kept_out
    assert waiting.came_in
    waiting.leave()


def test_a_lane_is_shared_once_somebody_was_beside_it():
    lanes = Lanes(processors=8)
    with lanes.taken(SMALL, 100) as first:
        assert not lanes.was_shared(first)
        with lanes.taken(SMALL, 100) as second:
            assert lanes.was_shared(first) and lanes.was_shared(second)
        assert lanes.was_shared(first)
    with lanes.taken(SMALL, 100) as again:
        assert again == first and not lanes.was_shared(again)


def test_one_that_is_larger_than_the_machine_runs_alone():
    """Ranks may be more than processors, and memory that is short is found where it is allocated."""
    lanes = Lanes(processors=2)
    with lanes.taken(Need(16, 1000), 100) as lane:
        assert lane == 0 and not lanes.is_free(SMALL, 100)


def test_small_ones_do_not_keep_a_large_one_out():
    lanes = Lanes(processors=4)
    first = Visitor(lanes.taken(SMALL, 100))
    assert first.came_in
    large = Visitor(lanes.taken(Need(4, 10), 100))
    assert large.is_kept_out
    assert not lanes.is_free(SMALL, 100)
    late = Visitor(lanes.taken(SMALL, 100))
    assert late.is_kept_out
    first.leave()
    assert large.came_in and late.is_kept_out
    large.leave()
    assert late.came_in
    late.leave()


def test_who_gives_up_waiting_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    lanes = Lanes(processors=4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with lanes.taken(SMALL, 100):
        monkeypatch.setattr(lanes._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), lanes.taken(SMALL, 100):
            pytest.fail("it was not its turn")
        monkeypatch.undo()
        with lanes.taken(SMALL, 100) as lane:
            assert lane == 1


def test_the_end_is_waited_for():
    lanes = Lanes(processors=2)
    inside = Visitor(lanes.taken(SMALL, 100))
    assert inside.came_in
    ending = in_thread(lanes.wait_until_empty)
    ending.join(0.05)
    assert ending.is_alive()
    inside.leave()
    joined(ending)
