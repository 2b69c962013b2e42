"""Which processors each rank is bound to, and which of them it uses."""

from __future__ import annotations

import os
import threading

import pytest

from pkb_gym.engine.rankside import processors
from pkb_gym.engine.rankside.processors import MOST_TRIED, bind_rank, find_fastest, move_to
from tests.engine.forked import in_child


def bound(monkeypatch: pytest.MonkeyPatch, allowed: set[int], world_size: int) -> list[list[int]]:
    """The processors of each rank where a process may use these."""
    found: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, own: found.append(list(own)))
    counts = [bind_rank(rank, world_size) for rank in range(world_size)]
    assert counts == [len(own) for own in found]
    return found


def test_each_rank_has_neighbouring_processors_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound(monkeypatch, set(range(8)), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert bound(monkeypatch, set(range(4)), 4) == [[0], [1], [2], [3]]
    assert bound(monkeypatch, {0, 1}, 1) == [[0, 1]]


def test_what_is_left_over_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound(monkeypatch, set(range(7)), 3) == [[0, 1], [2, 3], [4, 5]]


def test_only_processors_that_may_be_used_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound(monkeypatch, {12, 3, 5, 40}, 2) == [[3, 5], [12, 40]]


def test_more_ranks_than_processors_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound(monkeypatch, {4, 6}, 5) == [[4], [6], [4], [6], [4]]


def test_this_process_is_bound() -> None:
    allowed = os.sched_getaffinity(0)

    def work() -> None:
        assert bind_rank(len(allowed), len(allowed) + 1) == 1
        assert os.sched_getaffinity(0) == {min(allowed)}

    in_child(work)
    assert os.sched_getaffinity(0) == allowed


def test_processors_that_are_slow_just_now_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    took_ns = {3: 100, 4: 180, 5: 119, 6: 121, 9: 101}
    monkeypatch.setattr(processors, "_spin_ns", took_ns.__getitem__)
    assert find_fastest(sorted(took_ns)) == [3, 9, 5]
    assert find_fastest([3, 4, 6]) == [3, 6], "two at least, however slow"
    assert find_fastest([4]) == [4]


@pytest.mark.parametrize("count", [1, 16, 17, 28, 64, 112])
def test_only_some_of_many_are_tried(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(processors, "_spin_ns", lambda processor: 100)
    tried = find_fastest(range(1, count + 1))
    assert min(count, MOST_TRIED // 2) <= len(tried) <= MOST_TRIED
    assert set(tried) <= set(range(1, count + 1)) and len(set(tried)) == len(tried)


def test_trying_is_real() -> None:
    own = sorted(os.sched_getaffinity(0))

    def work() -> None:
        found = find_fastest(own)
        assert found and set(found) <= set(own)
        assert os.sched_getaffinity(0) == {own[-1]}, "the thread that tries stays where it tried last"

    in_child(work)


def test_all_threads_move() -> None:
    last = max(os.sched_getaffinity(0))

    def work() -> None:
        release, done = threading.Event(), threading.Event()
        found: list[set[int]] = []

        def other() -> None:
            release.wait()
            found.append(os.sched_getaffinity(0))
            done.set()

        threading.Thread(target=other, daemon=True).start()
        move_to([last])
        release.set()
        assert done.wait(5) and found == [{last}] == [os.sched_getaffinity(0)]

    in_child(work)
