"""The processes of a gang: stopped and continued together, looked at, and ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Sequence
from typing import TypeAlias

from pkb_gym.engine.gangs.descendants import end_descendants
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.loopback import loopback_bytes, segments_sent
from pkb_gym.engine.gangs.rank_threads import wait_until_stopped
from pkb_gym.engine.gangs.tcp_memory import MAX_FROZEN, ConnectionWatch, check_connections
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.pidfds import pid_of, run_delay_ns, send, stat
from pkb_gym.engine.support.processors import move_to

END_TIMEOUT_S = 5.0

SAMPLING_S, SAMPLES = 0.1, 10
"""Time between looks at ranks that missed a deadline, and the number of looks: do they compute or wait?"""

FREEZE_TIMEOUT_S = 20.0
"""Maximum wait in seconds until every thread of a rank has stopped: on a busy machine a thread waits for a processor in
order to stop."""

Processors: TypeAlias = Sequence[Sequence[int]]
"""Numbers of processors, for each rank."""


class RankProcesses:
    """The leader of a gang and its ranks, by descriptors of their processes.

    Args:
        leader: Pidfd of the process that has forked the ranks; closed by `close`.
        isolated: Whether the leader is process 1 of a namespace, so that the kernel ends all of it with the leader.
        may_start_processes: Whether ranks may start programs.
    """

    def __init__(self, leader: int, *, isolated: bool, may_start_processes: bool) -> None:
        self.pidfds: list[int] = []
        self._leader = leader
        self._isolated = isolated
        self._may_start_processes = may_start_processes

    def signal(self, number: signal.Signals, ranks: Collection[int] | None = None) -> None:
        """Sends a signal to ranks; None for all."""
        for rank, pidfd in enumerate(self.pidfds):
            if ranks is None or rank in ranks:
                send(pidfd, number)

    def freeze(self) -> int:
        """Stops every rank with all its threads, and ends what they have started; returns when that is done.

        Returns:
            Nanoseconds until the last thread was seen at work, see `wait_until_stopped`.

        Raises:
            GangFailed: a thread does not stop, or connections hold what others lack, see `tcp_memory`.
        """
        at_work_ns = self._freeze()
        if self._isolated:
            check_connections(pid_of(self._leader), MAX_FROZEN * len(self.pidfds))
        return at_work_ns

    def _freeze(self) -> int:
        at_work_ns = 0
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        while True:
            self.signal(signal.SIGSTOP)
            at_work_ns += wait_until_stopped(self.pidfds, deadline)
            if not self._may_start_processes or not end_descendants(self._leader, self.pidfds):
                return at_work_ns
            if time.monotonic() > deadline:
                raise GangFailed(Failure.RUNTIME_ERROR, None, "processes that a rank has started could not be ended")

    def thaw(self) -> None:
        """Lets frozen ranks go on."""
        self.signal(signal.SIGCONT)

    def move(self, processors: Processors) -> None:
        """Has ranks run on these processors from now on; one that may not be moved runs where it is."""
        for pidfd, own in zip(self.pidfds, processors, strict=True):
            pid = pid_of(pidfd)
            if pid is not None:
                with contextlib.suppress(OSError):  # it may end meanwhile
                    move_to(own, pid)

    def processor_ticks(self) -> int:
        """Processor time of all ranks since they began, in clock ticks; it stands still while they are frozen."""
        return sum(stat(pidfd)[1] for pidfd in self.pidfds)

    def run_delays_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank's main thread has waited for a processor so far while it could run.

        0 for a rank that has ended, and where the kernel does not count (`/proc/PID/schedstat`, see proc(5)).
        """
        return tuple(run_delay_ns(pidfd) for pidfd in self.pidfds)

    def connection_watch(self) -> ConnectionWatch:
        """For while ranks run; it sees nothing where ranks share the machine's network."""
        return ConnectionWatch(pid_of(self._leader) if self._isolated else None, len(self.pidfds))

    def loopback_bytes(self) -> int | None:
        """Bytes that the ranks have sent to each other so far; None where they share the machine's network."""
        return loopback_bytes(pid_of(self._leader)) if self._isolated else None

    def segments_sent(self) -> int | None:
        """Segments of TCP that the ranks have sent so far; None where they share the machine's network."""
        return segments_sent(pid_of(self._leader)) if self._isolated else None

    def ended(self) -> set[int]:
        """The ranks that have ended, whether their leader has reported it or not."""
        ended = select.select(self.pidfds, [], [], 0)[0]
        return {rank for rank, pidfd in enumerate(self.pidfds) if pidfd in ended}

    def all_run(self) -> bool:
        """Whether no rank has ended; a frozen rank runs."""
        return not self.ended()

    def computing(self, ranks: Collection[int]) -> set[int]:
        """The ranks that compute rather than wait, by a look at them for `SAMPLING_S`."""
        before = {rank: stat(self.pidfds[rank])[1] for rank in ranks}
        running = dict.fromkeys(ranks, 0)
        for _ in range(SAMPLES):
            time.sleep(SAMPLING_S / SAMPLES)
            for rank in ranks:
                running[rank] += stat(self.pidfds[rank])[0] == "R"
        # On a busy machine a rank that computes gets few ticks, yet it is ready to run whenever one looks.
        return {rank for rank in ranks if stat(self.pidfds[rank])[1] - before[rank] > 2 or running[rank] > SAMPLES // 2}

    def kill(self) -> None:
        """Ends every rank, and returns when none runs any more."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + END_TIMEOUT_S
        for pidfd in self.pidfds:
            select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))

    def end_namespace(self) -> None:
        """Ends the leader where the kernel then ends everything in its namespace."""
        if self._isolated:
            send(self._leader, signal.SIGKILL)

    def wait_or_kill(self) -> None:
        """Gives the leader `END_TIMEOUT_S` to end by itself, then kills it and every rank."""
        if not select.select([self._leader], [], [], END_TIMEOUT_S)[0]:
            send(self._leader, signal.SIGKILL)
            self.signal(signal.SIGKILL)
            select.select([self._leader], [], [], END_TIMEOUT_S)

    def close(self) -> None:
        """Closes the descriptors."""
        for pidfd in (*self.pidfds, self._leader):
            os.close(pidfd)
