"""The threads of ranks: whether all have stopped, and how many there are."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.pidfds import pid_of, send
from pkb_gym.engine.support.proc_files import read_proc

STOPPED, AT_WORK = set("TtZXx"), set("RD")
"""State letters of threads, see proc(5): those that do nothing more, and those that run or are in the kernel."""

WATCH_S = 0.2
"""The interval of counting threads while a gang is waited for."""

LOOKS_AT_ONCE, LOOK_S = 8, 0.0003
"""The number of looks at threads that are to stop without a pause between them, and the pause from then on: looks
without pauses take the processor from threads that need it in order to stop."""


STOP_AGAIN_S = 1.0
"""Time in seconds after which SIGSTOP is sent once more: whoever continues processes of this user, as job control does,
cancels it."""

STATES = {"R": "runs or waits for a processor", "S": "sleeps", "D": "is in an uninterruptible call of the kernel"}
"""State letter -> what the thread does."""


def thread_states(pidfd: int) -> str:
    """State letter of every thread of a process; empty if it has ended."""
    pid, letters = pid_of(pidfd), ""
    if pid is None:
        return ""
    with contextlib.suppress(FileNotFoundError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                letters += read_proc(f"{thread.path}/stat").rpartition(b")")[2].split(None, 1)[0].decode()
    return letters


def wait_until_stopped(pidfds: Sequence[int], deadline: float) -> int:
    """Waits for every thread of processes that SIGSTOP was sent to.

    The state of a process is that of its main thread, which does not show the others'. A thread in a call of the
    kernel goes on until the call ends, and may write to outputs meanwhile.

    Args:
        pidfds: Descriptors of the ranks' processes.
        deadline: Time of the monotonic clock in seconds at which the wait ends.

    Returns:
        Nanoseconds that threads went on: until the last was seen at work, but no more than their processor time, since
        on a busy machine a thread waits for a processor in order to stop. Time in state D counts without processor.

    Raises:
        GangFailed: a thread does not stop.
    """
    began_ns, at_work_ns, asleep_in_kernel = time.perf_counter_ns(), 0, False
    stop_again = time.monotonic() + STOP_AGAIN_S
    before_ns = [_processor_ns(pidfd) for pidfd in pidfds]
    looks = 0
    for rank, pidfd in enumerate(pidfds):
        while left := set(thread_states(pidfd)) - STOPPED:
            asleep_in_kernel |= "D" in left
            if left & AT_WORK:
                at_work_ns = time.perf_counter_ns() - began_ns
            now = time.monotonic()
            if now > deadline:
                what = " and one that ".join(STATES.get(letter, f"is in state {letter}") for letter in sorted(left))
                text = f"rank {rank} could not be stopped: it has a thread that {what}"
                raise GangFailed(Failure.RUNTIME_ERROR, rank, text)
            if now > stop_again:
                stop_again = now + STOP_AGAIN_S
                send(pidfd, signal.SIGSTOP)
            looks += 1
            if looks < LOOKS_AT_ONCE:
                os.sched_yield()  # it may need this processor in order to stop
            else:
                time.sleep(LOOK_S)
    if at_work_ns == 0 or asleep_in_kernel:
        return at_work_ns
    # Of each thread by itself: the time of one that has ended meanwhile is not to be taken off from the others'.
    return min(
        at_work_ns,
        sum(
            now_ns - before.get(thread, 0)
            for pidfd, before in zip(pidfds, before_ns, strict=True)
            for thread, now_ns in _processor_ns(pidfd).items()
        ),
    )


def _processor_ns(pidfd: int) -> dict[str, int]:
    """Processor time of each thread of a process that has not ended, by its number."""
    times: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid_of(pidfd)}/task") as threads:
        for thread in threads:
            with contextlib.suppress(OSError):
                times[thread.name] = int(read_proc(f"{thread.path}/schedstat").split(None, 1)[0])
    return times


def max_threads() -> int:
    """The most threads of a rank: those of several pools with a thread for each processor."""
    return 256 + 4 * (os.cpu_count() or 1)


class ThreadWatch:
    """Counts the threads of ranks now and then.

    Args:
        pidfds: Descriptors of the ranks' processes.
        most: Number of threads of each rank, at most.
    """

    def __init__(self, pidfds: Sequence[int], most: int) -> None:
        self._pidfds, self._most = pidfds, most
        self._next = time.monotonic() + WATCH_S

    def look(self) -> None:
        """Looks, if it is time.

        Raises:
            GangFailed: a rank runs more than it may.
        """
        if time.monotonic() < self._next:
            return
        for rank, pidfd in enumerate(self._pidfds):
            count = _count(pidfd)
            if count > self._most:
                what = f"rank {rank} runs {count} threads; at most {self._most} are allowed"
                raise GangFailed(Failure.RUNTIME_ERROR, rank, what)
        self._next = time.monotonic() + WATCH_S


def _count(pidfd: int) -> int:
    try:
        return int(read_proc(f"/proc/{pid_of(pidfd)}/stat").rpartition(b")")[2].split()[17])
    except OSError:
        return 0
