"""The second baseline is an extra: measured once, and what goes wrong at it costs the candidate nothing."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.stages import timing_statistics
from pkb_gym.engine.stages.candidate_run import Known, Session
from pkb_gym.rewards.examples import timed


class Reference:
    """Replays take 40 us a call and the gate's 5 us; `captures` says what becomes of a capture."""

    def __init__(self, captures: bool | None) -> None:
        self.captures, self.asked = captures, 0

    def warm(self, calls: int) -> None:
        assert calls == timing_statistics.GRAPHS

    def capture(self, calls: int) -> bool:
        self.asked += 1
        if self.captures is None:
            raise InfrastructureError("the reference gang failed: out of memory")
        return self.captures

    def replay(self, calls: int) -> int:
        return 40_000 * calls + 5_000


def time_as_graphs(reference: Reference, known: Known) -> float | None:
    feedback = timed(baseline_us=100)
    session = Session.__new__(Session)
    session._findings = SimpleNamespace(timing=feedback.timing, config=feedback.config)  # type: ignore[assignment]
    session._workload = SimpleNamespace(problem=SimpleNamespace(name="AllReduce"))  # type: ignore[assignment]
    session._reference = reference  # type: ignore[assignment]
    session._known, session._quiet = known, contextlib.nullcontext()
    session._most_calls, session._gate_us = 100, 5.0
    session._prepare = lambda calls, timed: SimpleNamespace(sets=[None] * calls)  # type: ignore[method-assign]
    session._time_as_graphs()
    assert session._findings.timing is not None
    assert session._findings.timing.speedup == feedback.timing.speedup
    return session._findings.timing.baseline_graph_us


@pytest.mark.parametrize(("captures", "found"), [(True, pytest.approx(40.0)), (False, None), (None, None)])
def test_it_is_measured_once(captures, found):
    reference, known = Reference(captures), Known()
    assert time_as_graphs(reference, known) == found
    assert time_as_graphs(reference, known) == found
    assert reference.asked == 1
