"""Waiting for what is judged elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from pkb_gym.engine.errors import EvaluationNotFound, InfrastructureError, ServiceBusy
from pkb_gym.engine.evaluators.polling import PROGRESS_S, Polling, growing_pauses, while_busy


@dataclass(frozen=True)
class Found:
    state: str
    feedback: str | None = None


class Elsewhere:
    """Goes through states, one for each call; an error is raised in its place."""

    def __init__(self, *states: str | Exception) -> None:
        self._states = iter(states)
        self.submitted_s: list[float] = []
        self.polls: list[tuple[str, float]] = []

    def submit(self, wait_s: float) -> Found:
        self.submitted_s.append(wait_s)
        return self._next()

    def poll(self, last: Found, wait_s: float) -> Found:
        self.polls.append((last.state, wait_s))
        return self._next()

    def _next(self) -> Found:
        state = next(self._states)
        if isinstance(state, Exception):
            raise state
        return Found(state, "right" if state == "finished" else None)


def polling_now() -> Polling:
    return Polling.starting_now("http://node", timeout_s=60.0, call_s=30.0)


def test_an_answer_is_waited_for():
    there = Elsewhere("queued", "compile", "finished")
    assert polling_now().wait(there.submit, there.poll).feedback == "right"
    assert there.submitted_s == [30.0] and [state for state, _ in there.polls] == ["queued", "compile"]
    assert all(wait_s == 30.0 for _, wait_s in there.polls)


def test_each_new_state_is_reported_once():
    there = Elsewhere("queued", "queued", "compile", "finished")
    reported: list[str] = []
    polling_now().wait(there.submit, there.poll, reported.append)
    assert reported == ["queued", "compile"] and there.submitted_s == [0.0]
    assert all(wait_s == PROGRESS_S for _, wait_s in there.polls)


def test_an_evaluation_that_is_not_known_is_submitted_again():
    there = Elsewhere("queued", EvaluationNotFound("started anew"), "queued", "finished")
    assert polling_now().wait(there.submit, there.poll).feedback == "right"
    assert len(there.submitted_s) == 2


def test_the_time_is_over():
    there = Elsewhere("queued")
    late = Polling("http://node", time.monotonic() - 1, timeout_s=60.0, call_s=30.0)
    with pytest.raises(InfrastructureError, match="http://node has not judged it within 60 s; its state is: queued"):
        late.wait(there.submit, there.poll)
    assert there.polls == []


def test_a_full_queue_is_tried_again_up_to_the_deadline():
    there = Elsewhere(ServiceBusy("full"), "queued")
    assert while_busy(lambda: there.submit(0.0), time.monotonic() + 60, longest_pause_s=0.001).state == "queued"
    with pytest.raises(ServiceBusy):
        while_busy(lambda: Elsewhere(ServiceBusy("full")).submit(0.0), time.monotonic(), longest_pause_s=0.001)


def test_pauses_grow():
    pauses = growing_pauses(2.0)
    assert [next(pauses) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
