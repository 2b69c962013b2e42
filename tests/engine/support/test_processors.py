"""The choice of processors, and moving threads to them."""

from __future__ import annotations

import os
import threading

import pytest

from pkb_gym.engine.support import processors
from pkb_gym.engine.support.processors import MAX_TRIED, find_fastest, move_to
from tests.engine.forked import in_child
from tests.waiting import PATIENCE_S


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
    assert min(count, MAX_TRIED // 2) <= len(tried) <= MAX_TRIED
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
        assert done.wait(PATIENCE_S) and found == [{last}] == [os.sched_getaffinity(0)]

    in_child(work)
