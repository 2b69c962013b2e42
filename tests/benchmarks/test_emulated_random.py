"""The comparison of random programs goes on where a process is silent, fails or dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks import emulated_random
from benchmarks.emulated_random import Answer, Order, Worker, answers

ORDER = Order((0, 1, 2), Path("/no/such/emulator"), "stand-in")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """All workers that are started."""
    workers: list[Worker] = []
    begin = Worker.__init__

    def init(self: Worker, order: Order) -> None:
        begin(self, order)
        workers.append(self)

    monkeypatch.setattr(Worker, "__init__", init)
    return workers


@pytest.mark.timeout(120)
def test_programs_of_a_process_that_dies_are_tried_one_by_one(started: list[Worker]) -> None:
    """The emulator cannot be loaded, so that each process dies before its first program."""
    total = Answer()
    for answer in answers([ORDER.of((0, 1))], 2, time.monotonic() + 100):
        total.add(answer)
    assert sorted(total.problems) == [0, 1]
    assert "the process ended in step" in total.problems[0]
    assert len(started) == 3, "both together, then each alone"


@pytest.mark.timeout(120)
def test_a_silent_process_is_ended_and_its_program_named(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(ORDER)
    try:
        os.kill(worker._process.pid or 0, signal.SIGSTOP)
        worker._step = "gpu 0"
        assert worker.overdue() is None, "it has time yet"
        monkeypatch.setattr(emulated_random, "MOST_SILENT_S", 0.0)
        found = worker.overdue()
    finally:
        worker.end()
    assert found is not None
    answer, left = found
    assert list(answer.problems) == [0]
    assert "no answer within" in answer.problems[0]
    assert [order.seeds for order in left] == [(1, 2)]
    assert not worker._process.is_alive()
