"""Requests are spread over services, and services over processors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.serve.shares import share_out_gpus, share_out_processors
from pkb_gym.serve.spread import SpreadEvaluator

DEADLINE_S = 60.0


class Waiting:
    """Answers with its name once all that are expected have been asked."""

    def __init__(self, name: str, met: threading.Barrier) -> None:
        self._name, self._met = name, met
        self.closed = False

    def evaluate(self, *_: object):
        self._met.wait(DEADLINE_S)
        return self._name

    def close(self) -> None:
        self.closed = True


def test_each_request_goes_to_the_least_busy():
    met = threading.Barrier(4)
    two = [Waiting("a", met), Waiting("b", met)]
    spread = SpreadEvaluator(two)
    with ThreadPoolExecutor(4) as threads:
        requested = [threads.submit(spread.evaluate, None, "", None) for _ in range(4)]
        assert sorted(one.result(DEADLINE_S) for one in requested) == ["a", "a", "b", "b"]
    spread.close()
    assert all(one.closed for one in two)


def test_a_failed_request_leaves_no_trace():
    class Failing:
        def evaluate(self, *_: object):
            raise RuntimeError

        def close(self) -> None:
            pass

    spread = SpreadEvaluator([Failing(), Failing()])
    for _ in range(3):
        with pytest.raises(RuntimeError):
            spread.evaluate(None, "", None)
    assert spread._in_hand == [0, 0]


def test_processors_are_shared_out_from_the_last_on():
    assert share_out_processors(7, range(16)) == [(at, at + 1) for at in range(2, 16, 2)]
    with pytest.raises(ConfigError, match="3 evaluation services need a processor each; there are 2"):
        share_out_processors(3, [0, 1])


def test_gpus_are_shared_out_equally():
    assert share_out_gpus(2, ["4", "5", "6", "7"]) == [("4", "5"), ("6", "7")]
    assert share_out_gpus(2, []) == [(), ()]
    with pytest.raises(ConfigError, match="3 GPUs cannot be divided equally among 2"):
        share_out_gpus(2, ["0", "1", "2"])


class Gate:
    """Answers with its name when it is opened."""

    def __init__(self, name: str) -> None:
        self.name, self.opened, self.begun = name, threading.Event(), threading.Event()

    def evaluate(self, *_: object):
        self.begun.set()
        assert self.opened.wait(DEADLINE_S)
        return self.name

    def close(self) -> None:
        self.opened.set()


class Named:
    """In the place of a problem."""

    name = "Reduce"


def test_a_request_waits_for_the_first_that_has_room():
    """One of the two is kept busy; the other one judges all that wait."""
    busy, free = Gate("busy"), Gate("free")
    spread = SpreadEvaluator([busy, free], most_in_hand=1)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(spread.evaluate, Named(), "", None)
        assert busy.begun.wait(DEADLINE_S)
        free.opened.set()
        others = [threads.submit(spread.evaluate, Named(), "", None) for _ in range(3)]
        assert [one.result(DEADLINE_S) for one in others] == ["free"] * 3
        busy.opened.set()
        assert first.result(DEADLINE_S) == "busy"
    assert spread._in_hand == [0, 0]


def test_requests_that_wait_end_when_it_is_closed():
    gate = Gate("only")
    spread = SpreadEvaluator([gate], most_in_hand=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(spread.evaluate, Named(), "", None)
        assert gate.begun.wait(DEADLINE_S)
        waiting = threads.submit(spread.evaluate, Named(), "", None)
        spread.close()
        assert first.result(DEADLINE_S) == "only"
        with pytest.raises(InfrastructureError, match="Reduce: the evaluators were closed"):
            waiting.result(DEADLINE_S)
