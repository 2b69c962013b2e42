"""The compiled server of handovers on the CPU: what it moves at each of them, and when."""

import ctypes
import os
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers
from pkb_gym.engine.gangs.handover_ends import HandoverEnds, HandoverLibraries
from pkb_gym.engine.rankside.handover import Handovers, NoHandover, WaitingHandover, make_handovers, run_null_calls
from pkb_gym.engine.reference.handover_script import LINE_BYTES, CallLines, Script
from pkb_gym.engine.reference.handover_server import HandoverLibrary
from pkb_gym.engine.support.eventfds import drain

LINES = 64
CALLS = 3


@pytest.fixture(scope="module")
def libraries() -> Iterator[HandoverLibraries]:
    built = build_handovers("cpu", CompileCache.in_folder(None))
    yield built
    built.close()


@pytest.fixture(scope="module")
def library(libraries: HandoverLibraries) -> HandoverLibrary:
    return HandoverLibrary(f"/proc/self/fd/{libraries.reference_fds[0]}")


class Device:
    """The CPU, as far as a waiting handover asks."""

    name = "cpu"

    def synchronize_stream(self) -> None:
        pass


class Rank:
    """A rank's memory, of lines that hold their own numbers, and its ends of the handovers."""

    def __init__(self) -> None:
        self.memory = np.repeat(np.arange(LINES, dtype=np.uint8), LINE_BYTES).reshape(LINES, LINE_BYTES)
        self.request_fd, self.reply_fd = (os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2))
        self.handover = WaitingHandover(Device(), self.request_fd, self.reply_fd)  # type: ignore[arg-type]

    def serve(self, library: HandoverLibrary, script: Script):
        return library.serve_on_cpu(script, self.memory.ctypes.data, self.request_fd, self.reply_fd)

    def close(self) -> None:
        os.close(self.request_fd)
        os.close(self.reply_fd)


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.close()


def of(*calls: list[int]) -> CallLines:
    return CallLines.of([np.array(lines, np.uint32) for lines in calls])


def script(delays_us: tuple[int, ...] = (0,) * CALLS) -> Script:
    """Call c: arguments in lines 10 + 2 c (withdrawn) and 11 + 2 c (overwritten), its output in line 30 + c."""
    arrivals = of(*([10 + 2 * call, 11 + 2 * call] for call in range(CALLS)))
    values = np.stack([np.full(LINE_BYTES, 100 + int(line), np.uint8) for line in arrivals.lines])
    outputs = of(*([30 + call] for call in range(CALLS)))
    return Script(
        arrivals=arrivals,
        withdrawals=np.ones(CALLS, np.int32),
        values=values,
        decoys=values,
        poisons=outputs,
        receipts=outputs,
        delays_us=np.array(delays_us, np.int32),
    )


def test_arguments_arrive_with_their_call_and_are_withdrawn_after_it(library, rank):
    server = rank.serve(library, script())
    for call in range(CALLS):
        rank.handover.cross()
        own, next_ones = 10 + 2 * call, 12 + 2 * call
        assert (rank.memory[own] == 100 + own).all() and (rank.memory[own + 1] == 101 + own).all()
        assert (rank.memory[next_ones] == next_ones).all(), "the next call's arguments are here already"
        assert (rank.memory[30 + call] == POISON).all(), "the output is not poisoned"
        if call:
            assert (rank.memory[own - 2] == POISON).all(), "the last call's argument is still here"
            assert (rank.memory[own - 1] == 99 + own).all(), "what a call may overwrite was taken away"
        rank.memory[30 + call] = 200 + call
    rank.handover.cross()
    receipts = server.finish()
    assert receipts is not None
    assert [set(receipt.tolist()) for receipt in receipts] == [{200}, {201}, {202}]


def test_receipts_hold_the_output_as_it_was_when_the_call_had_finished(library, rank):
    server = rank.serve(library, script())
    for call in range(CALLS):
        rank.handover.cross()
        if call == 2:
            rank.memory[30] = 7  # the first call's output, too late
    rank.handover.cross()
    receipts = server.finish()
    assert receipts is not None and set(receipts[0].tolist()) == {POISON}


def test_outputs_are_taken_away_once_their_receipts_are_copied(library, rank):
    of_calls = script()
    twice = replace(of_calls, receipts=of(*([30 + call, 30 + call] for call in range(CALLS))), takes_outputs=True)
    server = rank.serve(library, twice)
    for call in range(CALLS):
        rank.handover.cross()
        assert (rank.memory[30 : 30 + call] == POISON).all(), "a peer could still read what a call has left"
        rank.memory[30 + call] = 200 + call
    rank.handover.cross()
    receipts = server.finish()
    assert receipts is not None and (rank.memory[30 : 30 + CALLS] == POISON).all()
    assert [set(receipt.tolist()) for receipt in receipts] == [{200}, {200}, {201}, {201}, {202}, {202}]


def test_a_block_that_breaks_off_has_no_receipts_and_its_server_ends(library, rank):
    server = rank.serve(library, script())
    rank.handover.cross()
    threads = threading.active_count()
    assert server.finish() is None
    assert threading.active_count() == threads


def test_what_a_broken_off_block_has_left_is_taken_before_the_next(library, rank):
    server = rank.serve(library, script())
    os.eventfd_write(rank.request_fd, 1)
    assert select.select([rank.reply_fd], [], [], 5)[0]  # served, and nobody waits for it
    server.finish()
    server = rank.serve(library, script())
    for _ in range(CALLS + 1):
        rank.handover.cross()
    assert server.finish() is not None


def test_a_delayed_call_waits(library, rank):
    server = rank.serve(library, script(delays_us=(0, 50_000, 0)))
    rank.handover.cross()
    os.eventfd_write(rank.request_fd, 1)
    assert not select.select([rank.reply_fd], [], [], 0.02)[0], "the arguments came at once"
    assert select.select([rank.reply_fd], [], [], 5)[0]
    os.eventfd_read(rank.reply_fd)
    server.finish()


def test_draining_an_empty_eventfd_does_not_wait(rank):
    drain(rank.request_fd)
    os.eventfd_write(rank.request_fd, 3)
    drain(rank.request_fd)
    assert not select.select([rank.request_fd], [], [], 0)[0]


def test_a_signal_does_not_end_the_wait_of_a_rank(library, rank):
    """A module with a timer of its own failed at its first handover, by an InterruptedError."""
    server = rank.serve(library, script(delays_us=(50_000, 0, 0)))
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        rank.handover.cross()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    server.finish()


needs_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


@needs_processors
def test_a_rank_meets_its_server_on_one_processor_and_is_free_otherwise(library, rank):
    """Handovers of the baseline had both on one processor at times when the candidate's had not, and cost less."""
    own = os.sched_getaffinity(0)
    here = []
    for _ in range(30):
        server = rank.serve(library, script())
        for _ in range(CALLS + 1):
            rank.handover.cross()
            here.append(ctypes.CDLL(None).sched_getcpu())
            assert os.sched_getaffinity(0) == own, "threads that the call starts would be held too"
        assert server.finish() is not None
    # Not always: from then on the scheduler may move it.
    assert here.count(max(own)) > 0.5 * len(here)


@needs_processors
def test_a_rank_whose_process_is_unknown_is_not_held(library, rank):
    own = os.sched_getaffinity(0)
    server = library.serve_on_cpu(script(), rank.memory.ctypes.data, rank.request_fd, rank.reply_fd, rank=0)
    for _ in range(CALLS + 1):
        rank.handover.cross()
        assert os.sched_getaffinity(0) == own
    assert server.finish() is not None


FULL = 2**64 - 2


def test_a_rank_that_fills_up_its_replies_keeps_nobody_waiting(library, libraries):
    """The server blocked when it answered, and so did whoever ended it: the judge stood still for ten minutes."""
    with HandoverEnds(1, libraries) as ends:
        rank = Rank()
        server = library.serve_on_cpu(script(), rank.memory.ctypes.data, *ends.eventfds[0])
        request_fd, reply_fd = ends.eventfds[0]
        os.eventfd_write(reply_fd, FULL)
        os.eventfd_write(request_fd, 1)
        assert not select.select([], [reply_fd], [], 0.05)[1], "there is room for an answer"
        ends.drain()
        assert server.finish() is None
        rank.close()


def test_each_rank_has_two_eventfds_of_its_own(libraries):
    with HandoverEnds(3, libraries) as ends:
        fds = [fd for pair in ends.eventfds for fd in pair]
        assert len(set(fds)) == 6
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_candidates_on_the_cpu_get_no_library(libraries):
    assert libraries.candidate_fds == () and len(libraries.reference_fds) == 1


def test_a_rank_of_the_cpu_waits_or_goes_on_as_the_script_has_it(rank):
    handovers, null_call = make_handovers(Device(), None, 2, [rank.request_fd, rank.reply_fd])  # type: ignore[arg-type]
    assert isinstance(handovers, Handovers)
    assert isinstance(handovers.of("none", 0), NoHandover)
    assert isinstance(handovers.of("waiting", 0), WaitingHandover)
    with pytest.raises(AssertionError, match="GPUs"):
        handovers.of("enqueued", 0)
    run_null_calls(3, null_call, NoHandover())
