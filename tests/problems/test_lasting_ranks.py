"""Ranks that serve many tests: what they are asked, what goes wrong, and that they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.problems.lasting_ranks import LastingRanks
from tests.problems.support import Job, MadeInRanks, run_jobs, run_reference


def begin(rank: int) -> None:
    os.environ["BEGUN"] = str(rank)


def work(rank: int, request: tuple[str, Any]) -> Any:
    kind, value = request
    if kind == "double":
        return rank, os.environ["BEGUN"], 2 * value
    if kind == "raise":
        raise ValueError(value)
    if kind == "exit":
        os._exit(3)
    return time.sleep(value)


Start = Callable[[], LastingRanks]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[LastingRanks] = []

    def start_one() -> LastingRanks:
        started.append(LastingRanks(2, begin, work))
        return started[-1]

    yield start_one
    for ranks in started:
        ranks.close()


def test_a_program_that_does_not_close_them_ends() -> None:
    """Signals that end other processes do not end those that are stopped."""
    program = (
        "from tests.problems.test_lasting_ranks import *; LastingRanks(2, begin, work).ask([('double', 1)] * 2, 60)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_each_rank_begins_once_and_has_requests_of_its_own(start: Start) -> None:
    ranks = start()
    for factor in (1, 3):
        requests = [("double", torch.tensor([factor, number])) for number in range(2)]
        (first, begun, doubled), (second, _, other) = ranks.ask(requests, 10)
        assert (first, begun, second) == (0, "0", 1)
        assert (doubled.tolist(), other.tolist()) == ([2 * factor, 0], [2 * factor, 2])
    assert len({*ranks.pids, os.getpid()}) == 3


def test_they_are_stopped_while_nobody_asks(start: Start) -> None:
    ranks = start()
    ranks.ask([("double", 1)] * 2, 10)
    until = time.monotonic() + 10
    while {psutil.Process(pid).status() for pid in ranks.pids} != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert [doubled for _, _, doubled in ranks.ask([("double", 1)] * 2, 10)] == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("raise", "no such thing"), "rank 1: .*ValueError: no such thing"),
        (("exit", None), "rank 1: its process has ended"),
        (("sleep", 60.0), "1 ranks still run"),
    ],
)
def test_every_error_is_reported_and_ends_all(start: Start, wrong: tuple[str, Any], words: str) -> None:
    ranks = start()
    pids = ranks.pids
    with pytest.raises(RuntimeError, match=f"(?s){words}"):
        ranks.ask([("double", 1), wrong], 1.0)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_connections_of_the_test_process_are_not_held_open(start: Start) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        start().ask([("double", 1)] * 2, 10)
        theirs.close()
        mine.settimeout(5)
        assert mine.recv(1) == b"", "a rank still holds the other end"


def test_a_reference_that_raises_does_not_spoil_the_next_one() -> None:
    with pytest.raises(RuntimeError, match="rank"):
        run_reference("AllReduce", world_size=2, args=[{"tensor": torch.zeros(2)}, {"tensor": None}])
    run_reference("AllReduce", world_size=2).assert_passes_own_checks()


def counting(name: str) -> Callable[..., Any]:
    """A solution whose result is the number of its calls."""
    calls = []

    def solution(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        count = torch.full_like(tensor, len(calls))
        dist.all_reduce(count)
        return count

    return solution


def test_a_solution_that_is_sent_keeps_what_it_keeps_for_one_run_alone() -> None:
    solution = MadeInRanks(counting, "AllReduce")
    jobs = [Job("AllReduce", world_size=2, trial=trial, solution=solution) for trial in range(2)]
    for _ in range(2):
        runs = run_jobs(jobs)
        assert [run.outputs[0]["out"].flatten()[0].item() for run in runs] == [2, 4]
