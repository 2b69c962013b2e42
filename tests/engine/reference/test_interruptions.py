"""Interruptions of a rank: it makes its call a little at a time, and runs freely afterwards."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference import interruptions
from pkb_gym.engine.reference.call_progress import CallProgress
from pkb_gym.engine.reference.handover_server import HandoverLibrary
from pkb_gym.engine.reference.interruptions import RUNS, Interruptions
from pkb_gym.engine.support.pidfds import stat

WORLD_SIZE, CALL = 2, 3
SOON_S = 30.0
RUN_S = 50e-6


@pytest.fixture(scope="module")
def library() -> Iterator[HandoverLibrary]:
    built = build_handovers("cpu", CompileCache.in_folder(None))
    yield HandoverLibrary(f"/proc/self/fd/{built.reference_fds[0]}")
    built.close()


class Rank:
    """A process that spins for the rank, and what the trusted side knows of it."""

    def __init__(self, library: HandoverLibrary) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.pidfd = os.pidfd_open(self.process.pid)
        self.request_fd, self.order_fd = (os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2))
        heaps = [Heap(sealed_memory("test", WORLD_SIZE << 20), 1 << 20, WORLD_SIZE, 0) for _ in range(2)]
        self.mine = heaps[0]
        self.progress = CallProgress((), 0, WORLD_SIZE, *heaps)
        self.interruptions = Interruptions(library.interrupt, self.pidfd)

    def interrupt(self) -> int:
        with self.interruptions.stopped():
            return self.interruptions.interrupt(RUN_S, self.progress, CALL, (self.request_fd, self.order_fd))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for fd in (self.pidfd, self.request_fd, self.order_fd):
            os.close(fd)


@pytest.fixture
def rank(library: HandoverLibrary) -> Iterator[Rank]:
    made = Rank(library)
    yield made
    made.close()


def runs_soon(rank: Rank) -> bool:
    deadline = time.monotonic() + SOON_S
    while stat(rank.pidfd)[0] == "T":
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-3)
    return True


def test_a_call_of_its_own_length_is_stopped_as_often_as_may_be(rank: Rank) -> None:
    own_processors = os.sched_getaffinity(0)
    assert rank.interrupt() == RUNS
    assert runs_soon(rank)
    assert os.sched_getaffinity(0) == own_processors


def test_it_is_stopped_in_between(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "MIN_STOP_S", 0.05)
    monkeypatch.setattr(interruptions, "MAX_STOP_S", 0.05)
    thread = threading.Thread(target=rank.interrupt)
    thread.start()
    states = set()
    while thread.is_alive():
        states.add(stat(rank.pidfd)[0])
    thread.join()
    assert "T" in states


def test_a_call_that_has_ended_is_stopped_no_more(rank: Rank) -> None:
    os.eventfd_write(rank.request_fd, 1)
    assert rank.interrupt() == 0
    assert runs_soon(rank)


def test_an_order_of_the_evaluator_ends_the_interruptions(rank: Rank) -> None:
    os.eventfd_write(rank.order_fd, 1)
    assert rank.interrupt() == 0
    assert runs_soon(rank)


def test_no_stop_follows_when_all_others_have_finished_the_call(rank: Rank) -> None:
    """What they could do without the rank they have done."""
    rank.mine.progress(1).reached = CALL + 2
    assert rank.interrupt() == 1
    assert runs_soon(rank)


def test_others_that_go_on_meanwhile_have_more_time(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on their way out of the call; the stop lasts until they are in the next one."""
    monkeypatch.setattr(interruptions, "MIN_STOP_S", 0.5)
    monkeypatch.setattr(interruptions, "MAX_STOP_S", SOON_S)
    rank.mine.progress(1).reached = CALL

    def finish() -> None:
        rank.mine.progress(1).reached = CALL + 1
        time.sleep(1.0)
        rank.mine.progress(1).reached = CALL + 2

    timer = threading.Timer(0.1, finish)
    timer.start()
    began = time.monotonic()
    stops = rank.interrupt()
    timer.join()
    assert stops == 1 and 1.0 < time.monotonic() - began < SOON_S


def test_a_rank_that_has_ended_is_no_error(rank: Rank) -> None:
    rank.process.kill()
    rank.process.wait()
    assert rank.interrupt() == RUNS


def test_a_stopped_rank_runs_again_whatever_happens(rank: Rank) -> None:
    with pytest.raises(OSError, match="gone"), rank.interruptions.stopped():
        signal.pidfd_send_signal(rank.pidfd, signal.SIGSTOP)
        raise OSError("gone")
    assert runs_soon(rank)
