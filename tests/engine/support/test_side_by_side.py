"""Work on many tasks at once: results as they come, errors as they are, and nothing left when it is broken off."""

from __future__ import annotations

import threading

import pytest

from pkb_gym.engine.support.side_by_side import side_by_side
from tests.waiting import PATIENCE_S


def test_every_task_has_one_result_or_its_error():
    def work(task):
        if task == 2:
            raise ValueError(task)
        return 10 * task

    with side_by_side([1, 2, 3], work, 2, name="work", give_up=pytest.fail) as done:
        found = dict(done.get() for _ in range(3))
    assert (found[1], found[3]) == (10, 30) and repr(found[2]) == "ValueError(2)"


def test_tasks_run_at_the_same_time():
    meet = threading.Barrier(3)
    with side_by_side(range(3), lambda _: meet.wait(PATIENCE_S), 3, name="work", give_up=pytest.fail) as done:
        assert sorted(done.get()[1] for _ in range(3)) == [0, 1, 2]


def test_left_early_it_begins_nothing_more_and_has_the_rest_given_up():
    begun, given_up = [], threading.Event()

    def work(task):
        begun.append(task)
        return task == 0 or given_up.wait(PATIENCE_S)

    with (
        pytest.raises(KeyboardInterrupt),
        side_by_side(range(9), work, 1, name="left", give_up=given_up.set) as done,
    ):
        done.get()
        while len(begun) < 2:
            pass
        raise KeyboardInterrupt
    assert begun == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("left")]
