"""A gang: `world_size` rank processes that are started, talked to, frozen and ended together."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.deadlock_watch import DeadlockWatch
from pkb_gym.engine.gangs.failure_attribution import (
    GangFailed,
    cause_is_known,
    deadlocked,
    first_failure,
    missed_deadline,
)
from pkb_gym.engine.gangs.heaps import SymmetricHeap
from pkb_gym.engine.gangs.oom_kills import count_oom_kills
from pkb_gym.engine.gangs.output import RankOutput
from pkb_gym.engine.gangs.rank_processes import Processors, RankProcesses
from pkb_gym.engine.gangs.rank_threads import WATCH_S, ThreadWatch, max_threads
from pkb_gym.engine.gangs.stop_pulses import StopPulses
from pkb_gym.engine.gangs.zygote import TEMPORARY_BYTES, Zygote
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.forking import GangRequest, RankEnded, RanksStarted
from pkb_gym.engine.wire.frames import Wire, pair
from pkb_gym.engine.wire.messages import ProtocolError, WireError, WireMessage
from pkb_gym.engine.wire.orders import Armed, Failed, Go

START_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 5.0
"""A rank that does not read what it is sent is stuck; its deadline then passes."""

AFTERMATH_S = 0.05
"""Wait in seconds for others after a first failure: the report of the rank that failed first need not come first."""

CAUSE_S = 1.0
"""Maximum wait in seconds for the cause where ranks have only reported that another is gone."""

REPORT_S = 10.0
"""Maximum wait in seconds for the leader's report on a rank that has ended, which is late on a busy machine."""

TRACE_S = 0.5
"""Time in seconds for ranks that missed a deadline to report their places."""

Reply = TypeVar("Reply", bound=WireMessage)


@dataclass(frozen=True)
class Replies(Generic[Reply]):
    """One reply from each rank.

    Attributes:
        messages: Replies in the order of ranks.
        raw: The bytes that came with them.
        ended_ns: Moment of the last arrival, by `time.perf_counter_ns`.
    """

    messages: list[Reply]
    raw: list[bytes]
    ended_ns: int


class Gang:
    """Handle on a running gang; a context manager that ends it.

    Args:
        zygote: Zygote that forks the gang.
        entry: Module whose `main` each rank runs, see `GangRequest`.
        world_size: Number of ranks.
        confinement: Confinement of the ranks; None for a trusted gang.

    Attributes:
        processes: Processes of the gang, to stop, continue and look at.
        run_delays_ns: Nanoseconds that each rank waited for a processor during the last block, from the opening of the
            gate on: while a rank comes to its gate it tries processors, and waits for them.

    Raises:
        InfrastructureError: it could not be started.
    """

    def __init__(self, zygote: Zygote, entry: str, world_size: int, confinement: Confinement | None) -> None:
        self.world_size = world_size
        self._ended: dict[int, int] = {}
        self._errors: dict[int, Failed] = {}
        self._block_s = 0.0
        self.run_delays_ns: tuple[int, ...] = (0,) * world_size
        self._oom_kills = count_oom_kills()
        self._max_threads = sys.maxsize if confinement is None else max_threads()
        with contextlib.ExitStack() as resources:
            scratch, remove_scratch = zygote.new_scratch()
            resources.callback(remove_scratch)
            self._output = RankOutput(world_size)
            resources.callback(self._output.close)
            pairs: list[tuple[Wire, Wire]] = []
            for _ in range(1 + world_size):
                pairs.append(pair())
                for end in pairs[-1]:
                    resources.callback(end.close)
            self._leader, self._ranks = pairs[0][0], [mine for mine, _ in pairs[1:]]
            request = GangRequest(
                entry=entry,
                world_size=world_size,
                isolate=zygote.sandboxed,
                confined=confinement is not None,
                allow_processes=confinement is not None and confinement.allow_processes,
                pins_memory=confinement is not None and confinement.pins_memory,
                limits={} if confinement is None else confinement.limits(),
                scratch=scratch,
                temporary_bytes=TEMPORARY_BYTES,
                max_threads=world_size * max_threads(),
            )
            with self._output.writing_ends() as output_ends:
                ends = [end for _, end in pairs]
                fds = [end.fileno() for end in ends]
                try:
                    leader = zygote.fork(request, [fds[0], *output_ends, *fds[1:]])
                finally:
                    for end in ends:
                        end.close()
            self.processes = RankProcesses(
                leader, isolated=zygote.sandboxed, may_start_processes=request.allow_processes
            )
            resources.callback(self.processes.close)
            resources.callback(self._end_processes)
            self.processes.pidfds += self._started_ranks()
            self._poll = select.epoll()
            resources.callback(self._poll.close)
            self._rank_of_fd = {wire.fileno(): rank for rank, wire in enumerate(self._ranks)}
            self._rank_of_output = {fd: rank for rank, fd in enumerate(self._output.filenos)}
            for fd in (*self._rank_of_fd, self._leader.fileno(), *self._rank_of_output):
                self._poll.register(fd, select.EPOLLIN)
            for wire in self._ranks:
                wire.sock.settimeout(SEND_TIMEOUT_S)
                if confinement is not None:
                    wire.refuse_descriptors()
            self._resources = resources.pop_all()

    def _started_ranks(self) -> list[int]:
        """Waits until the leader has forked every rank; returns their pidfds."""
        self._leader.sock.settimeout(START_TIMEOUT_S)
        try:
            return self._leader.receive_with_fds(RanksStarted)[2]
        except (WireError, TimeoutError) as error:
            time.sleep(AFTERMATH_S)
            what = f"a gang of {self.world_size} did not start: {error}. {self.output}"
            raise InfrastructureError(what) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks have written to stdout and stderr so far, see `RankOutput.tail`."""
        self._output.drain_all()
        return self._output.tail

    def output_of(self, rank: int) -> str:
        """The tail of what one rank has written to stdout and stderr so far, as it wrote it."""
        self._output.drain_all()
        return self._output.tail_of(rank)

    def exchange(
        self,
        orders: Sequence[WireMessage],
        expect: type[Reply],
        *,
        timeout_s: float,
        fds: Sequence[int] = (),
        own_fds: Sequence[Sequence[int]] = (),
        heap: SymmetricHeap | None = None,
    ) -> list[Reply]:
        """Sends one order to each rank and waits for one reply from each.

        Args:
            orders: One order for each rank.
            expect: Kind of the replies.
            timeout_s: Deadline for all of them.
            fds: Descriptors that go to every rank.
            own_fds: Descriptors of each rank's own, which follow those; empty for none.
            heap: Heap in which ranks report their places; None before they have one.

        Raises:
            GangFailed: a rank failed, sent something out of turn, or the deadline passed.
        """
        self.send(orders, fds, own_fds=own_fds)
        return self.collect(expect, timeout_s=timeout_s, heap=heap).messages

    def exchange_for_fds(self, order: WireMessage, expect: type[Reply], *, timeout_s: float) -> list[list[int]]:
        """Sends one order to every rank of a trusted gang; returns the descriptors that came with each reply.

        Raises:
            GangFailed: a rank failed, or is gone.
        """
        self.send([order] * self.world_size)
        answers = []
        for rank, wire in enumerate(self._ranks):
            wire.sock.settimeout(timeout_s)
            try:
                reply, _, fds = wire.receive_with_fds(expect, Failed)
            except (WireError, TimeoutError) as error:
                raise self._first_failure(str(error)) from None
            finally:
                wire.sock.settimeout(SEND_TIMEOUT_S)
            if isinstance(reply, Failed):
                self._errors[rank] = reply
            answers.append(fds)
        if self._errors:
            raise self._first_failure()
        return answers

    def send(
        self,
        orders: Sequence[WireMessage],
        fds: Sequence[int] = (),
        raw: bytes = b"",
        own_fds: Sequence[Sequence[int]] = (),
    ) -> None:
        """Sends one order to each rank; a rank that is gone is noticed by `collect`. Arguments as `exchange`.

        Raises:
            GangFailed: a rank has sent a message out of turn.
        """
        for rank, wire in enumerate(self._ranks):
            if wire.pending():
                raise GangFailed(Failure.INTEGRITY, rank, f"rank {rank} sent something to the evaluator out of turn")
        own_fds = own_fds or [()] * self.world_size
        for wire, order, own in zip(self._ranks, orders, own_fds, strict=True):
            with contextlib.suppress(WireError):
                wire.send(order, raw=raw, fds=(*fds, *own))

    def collect(self, expect: type[Reply], *, timeout_s: float, heap: SymmetricHeap | None = None) -> Replies[Reply]:
        """Waits for one reply from each rank; arguments and errors as `exchange`."""
        frames: dict[int, tuple[Reply, bytes]] = {}
        watches = (ThreadWatch(self.processes.pidfds, self._max_threads), self.processes.connection_watch())
        deadlocks = None if heap is None else DeadlockWatch(self.processes.pidfds, heap)
        deadline, is_overdue = time.monotonic() + timeout_s, False
        try:
            while True:
                for rank in set(range(self.world_size)) - set(frames) - set(self._errors):
                    self._take(rank, expect, frames)
                if len(frames) == self.world_size and not self._errors:
                    ended_ns = time.perf_counter_ns()
                    ordered = [frames[rank] for rank in range(self.world_size)]
                    return Replies([message for message, _ in ordered], [raw for _, raw in ordered], ended_ns)
                if self._errors or self._ended:
                    raise self._first_failure()
                left, unfinished = deadline - time.monotonic(), set(range(self.world_size)) - set(frames)
                if is_overdue:
                    raise self._missed_deadline(unfinished, timeout_s, heap)
                is_overdue = left <= 0  # this process may have been held up: what has arrived meanwhile is read first
                if deadlocks is not None and deadlocks.sees_deadlock(unfinished):
                    raise self._deadlocked(unfinished, heap)
                self._listen(min(max(0.0, left), WATCH_S))
                for watch in watches:
                    watch.look()
        except WireError as error:
            raise self._first_failure(str(error)) from None

    def _take(self, rank: int, expect: type[Reply], frames: dict[int, tuple[Reply, bytes]]) -> None:
        """Takes in a rank's reply, or its error, if it has arrived."""
        try:
            frame = self._ranks[rank].take(expect, Failed)
        except ProtocolError as error:
            raise GangFailed(
                Failure.INTEGRITY, rank, f"rank {rank} sent something that its program does not: {error}"
            ) from None
        if frame is None:
            return
        message, raw = frame
        if isinstance(message, expect):
            frames[rank] = message, raw
        elif isinstance(message, Failed):
            self._errors[rank] = message

    def run_block(
        self,
        orders: Sequence[WireMessage],
        expect: type[Reply],
        *,
        timeout_s: float,
        arm_timeout_s: float | None = None,
        stage: Callable[[], Processors | None] | None = None,
        heap: SymmetricHeap | None = None,
        stopped_rank: int | None = None,
    ) -> tuple[int, list[Reply]]:
        """Arms every rank and freezes the gang, stages its inputs, opens the gate, and waits until the last is done.

        Where staging names processors, the ranks run there from then on: how fast they are changes within
        milliseconds, and frozen ranks cannot move themselves. A `stopped_rank` is stopped now and then meanwhile. Ranks
        have `arm_timeout_s` to reach the gate, by default as long as for the block.

        Returns:
            Nanoseconds from opening the gate to the last completion, and the replies.
        """
        self.arm(orders, timeout_s=timeout_s if arm_timeout_s is None else arm_timeout_s, heap=heap)
        return self.run_armed(expect, timeout_s=timeout_s, stage=stage, heap=heap, stopped_rank=stopped_rank)

    def arm(self, orders: Sequence[WireMessage], *, timeout_s: float, heap: SymmetricHeap | None = None) -> None:
        """Has every rank come to the gate of a block, and freezes the gang; see `run_block`."""
        self.exchange(orders, Armed, timeout_s=timeout_s, heap=heap)
        self.processes.freeze()

    def run_armed(
        self,
        expect: type[Reply],
        *,
        timeout_s: float,
        stage: Callable[[], Processors | None] | None = None,
        heap: SymmetricHeap | None = None,
        stopped_rank: int | None = None,
    ) -> tuple[int, list[Reply]]:
        """Runs the block that the ranks have been armed for; see `run_block`."""
        if stage is not None and (processors := stage()) is not None:
            self.processes.move(processors)
        before_ns = self.processes.run_delays_ns()
        began_ns = time.perf_counter_ns()
        self.send([Go()] * self.world_size)
        self.processes.thaw()
        with self._pulses(stopped_rank):
            replies = self.collect(expect, timeout_s=timeout_s, heap=heap)
        after_ns = self.processes.run_delays_ns()
        self.run_delays_ns = tuple(after - before for before, after in zip(before_ns, after_ns, strict=True))
        if stopped_rank is None:
            self._block_s = (replies.ended_ns - began_ns) * 1e-9
        return replies.ended_ns - began_ns, replies.messages

    def _pulses(self, rank: int | None) -> AbstractContextManager[object]:
        if rank is None:
            return contextlib.nullcontext()
        return StopPulses(self.processes.pidfds[rank], self._block_s)

    def close(self) -> None:
        """Ends every process of the gang; calling it again changes nothing."""
        self._resources.close()

    def _end_processes(self) -> None:
        self.processes.end_namespace()
        self._leader.close()  # which a leader takes as the order to end its ranks and itself
        self.processes.wait_or_kill()

    def _listen(self, seconds: float) -> None:
        """Takes in what arrives first: replies, ends of ranks, output."""
        for fd, _ in self._poll.poll(seconds):
            if fd in self._rank_of_fd:
                try:
                    self._ranks[self._rank_of_fd[fd]].fill()
                except WireError:
                    self._poll.unregister(fd)  # its end is reported by the leader
            elif fd == self._leader.fileno():
                ended, _ = self._leader.receive(RankEnded)
                self._ended[ended.rank] = ended.status
            elif not self._output.drain(self._rank_of_output[fd]):
                self._poll.unregister(fd)

    def _first_failure(self, otherwise: str = "") -> GangFailed:
        """Listens a little longer, then attributes the failure to the rank that fell first."""
        began = time.monotonic()
        while (left := began + self._patience_s() - time.monotonic()) > 0:
            try:
                self._listen(left)
                for rank, wire in enumerate(self._ranks):
                    self._note_error(rank, wire)
            except (WireError, GangFailed):
                break
        memory_was_short = count_oom_kills() != self._oom_kills
        return first_failure(self._ended, self._errors, otherwise, memory_was_short=memory_was_short)

    def _patience_s(self) -> float:
        """Seconds to listen after a first failure, by the reports so far."""
        if cause_is_known(self._ended, self._errors):
            return AFTERMATH_S
        return REPORT_S if self.processes.ended() - self._ended.keys() else CAUSE_S

    def _note_error(self, rank: int, wire: Wire) -> None:
        """Takes in a rank's error; a rank that is done is no evidence of the cause."""
        with contextlib.suppress(ProtocolError):
            frame = wire.take(Failed)
            if frame is not None:
                self._errors[rank] = frame[0]

    def _missed_deadline(self, missing: set[int], timeout_s: float, heap: SymmetricHeap | None) -> GangFailed:
        busy, places = self.processes.computing(missing), _places(missing, heap)
        self._end_with_traces(missing)
        return missed_deadline(places, busy, timeout_s)

    def _deadlocked(self, waiting: set[int], heap: SymmetricHeap | None) -> GangFailed:
        places = _places(waiting, heap)
        self._end_with_traces(waiting)
        return deadlocked(places)

    def _end_with_traces(self, ranks: set[int]) -> None:
        """Ends ranks by the signal that has them write where they stand, and takes in what they write."""
        self.processes.signal(signal.SIGQUIT, ranks)
        deadline = time.monotonic() + TRACE_S
        while ranks - set(self._ended) and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(GangFailed):
                self._listen(left)


def _places(ranks: set[int], heap: SymmetricHeap | None) -> dict[int, str]:
    """The place of each of these ranks, in words."""
    return {rank: "" if heap is None else heap.place(rank) for rank in sorted(ranks)}
