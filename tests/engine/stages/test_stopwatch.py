"""The wall time of an evaluation, divided among names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.engine.stages.stopwatch import Stopwatch
from tests.engine.stages.fake_gangs import builder


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_moment_counts_once_and_for_the_innermost_phase() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 1
    with pytest.raises(RuntimeError), watch.phase("time"):
        clock.now += 2
        with watch.phase(WAITING):
            clock.now += 4
        clock.now += 8
        raise RuntimeError
    with watch.phase(WAITING):
        clock.now += 16
    clock.now += 32
    assert watch.readings() == {"other": 33.0, "time": 10.0, WAITING: 20.0}
    clock.now += 64
    assert watch.readings()["other"] == 97.0


def test_waiting_within_a_stage_is_no_time_of_the_stage() -> None:
    clock = Clock()
    feedback = builder()
    feedback.stopwatch = Stopwatch(clock)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        clock.now += 5
        yield
        clock.now += 1

    with feedback.stage(Stage.TIME, lambda _: None), feedback.waiting_for(turn()):
        clock.now += 2
    assert feedback.stopwatch.readings() == {"other": 0.0, "time": 3.0, WAITING: 5.0}
