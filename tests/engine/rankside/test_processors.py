"""The processors that each rank is bound to."""

from __future__ import annotations

import os

import pytest

from pkb_gym.engine.rankside.processors import bind_rank
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
