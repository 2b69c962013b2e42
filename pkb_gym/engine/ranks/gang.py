"""A gang: `world_size` rank processes that are started, talked to, frozen and ended together."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.descendants import end_strays
from pkb_gym.engine.ranks.failure_attribution import GangFailed, cause_is_known, first_failure, missed_deadline
from pkb_gym.engine.ranks.pidfds import pid_of, send, stat
from pkb_gym.engine.ranks.zygote import TEMPORARY_BYTES, Zygote
from pkb_gym.engine.rankside.leader import GangRequest
from pkb_gym.engine.rankside.processors import move_to
from pkb_gym.engine.rankside.wire import Json, ProtocolError, WireError, pair
from pkb_gym.engine.records.feedback import Failure

MAX_OUTPUT_BYTES = 16 << 20
"""A gang that writes more to stdout and stderr is ended."""

KEPT_OUTPUT_BYTES = 8192
START_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 5.0
"""A rank that does not read what it is sent is stuck; its deadline then passes."""

AFTERMATH_S = 0.05
"""After a first failure, how long to listen for others: the rank that fell first need not be heard first."""

CAUSE_S = 1.0
"""How long to wait for the cause where ranks have only complained that another is gone."""

SAMPLING_S, SAMPLES = 0.1, 10
"""How long, and how often, ranks that missed a deadline are looked at: do they compute or wait?"""


Processors: TypeAlias = Sequence[Sequence[int]]
"""Numbers of processors, for each rank."""


@dataclass(frozen=True)
class Replies:
    """One reply from each rank.

    Attributes:
        messages: in order of ranks.
        raw: the bytes that came with them.
        ended_ns: perf_counter_ns when the last had arrived.
    """

    messages: list[dict[str, Any]]
    raw: list[bytes]
    ended_ns: int


@dataclass(frozen=True)
class Confinement:
    """What candidate ranks may have; None in its place means a trusted gang.

    Attributes:
        memory_bytes: address space beyond what a fresh rank maps; None where ranks limit themselves later.
        file_bytes: largest file a rank may write.
        allow_processes: whether ranks may start programs (a build needs compilers).
    """

    memory_bytes: int | None
    file_bytes: int = 128 << 20
    allow_processes: bool = False

    def limits(self) -> dict[str, int]:
        """As `rankside.confine.limit_resources` takes them."""
        memory = {} if self.memory_bytes is None else {"RLIMIT_AS": self.memory_bytes}
        return memory | {
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": 1024,
        }


class Gang:
    """Handle on a running gang; a context manager that ends it."""

    def __init__(self, zygote: Zygote, entry: str, world_size: int, confinement: Confinement | None) -> None:
        self.world_size = world_size
        self._output = bytearray()
        self._output_bytes = 0
        self._ended: dict[int, int] = {}
        self._errors: dict[int, dict[str, Any]] = {}
        self._closed = False
        self._scratch, self._remove_scratch = zygote.new_scratch()
        self._isolated = zygote.sandboxed
        self._may_start_processes = confinement is not None and confinement.allow_processes
        request = GangRequest(
            entry=entry,
            world_size=world_size,
            isolate=zygote.sandboxed,
            confined=confinement is not None,
            allow_processes=self._may_start_processes,
            limits={} if confinement is None else confinement.limits(),
            scratch=self._scratch,
            temporary_bytes=TEMPORARY_BYTES,
        )
        self._leader, leader_end = pair()
        self._output_fd, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(output_end, True)
        pairs = [pair() for _ in range(world_size)]
        self._ranks = [mine for mine, _ in pairs]
        theirs = [leader_end.fileno(), output_end, *(end.fileno() for _, end in pairs)]
        self._pidfds: list[int] = []
        try:
            self._leader_pidfd = zygote.fork(request, theirs)
        except InfrastructureError:
            self._release()
            raise
        finally:
            leader_end.close()
            os.close(output_end)
            for _, end in pairs:
                end.close()
        self._leader.sock.settimeout(START_TIMEOUT_S)
        try:
            _, _, self._pidfds = self._leader.receive_with_fds()
        except (WireError, TimeoutError) as error:
            time.sleep(AFTERMATH_S)
            self._drain()
            said = self.output
            self.close()
            raise InfrastructureError(f"a gang of {world_size} did not start: {error}. {said}") from None
        self._poll = select.epoll()
        self._wires: dict[int, int] = {}
        for rank, wire in enumerate(self._ranks):
            self._wires[wire.fileno()] = rank
            self._poll.register(wire.fileno(), select.EPOLLIN)
            wire.sock.settimeout(SEND_TIMEOUT_S)
        self._poll.register(self._leader.fileno(), select.EPOLLIN)
        self._poll.register(self._output_fd, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks wrote to stdout and stderr."""
        return bytes(self._output).decode(errors="replace")

    def ask(
        self,
        messages: Sequence[Mapping[str, Json]],
        expect: str,
        *,
        timeout_s: float,
        fds: Sequence[int] = (),
        where: Callable[[int], str] | None = None,
    ) -> list[dict[str, Any]]:
        """Sends one message to each rank and waits for one reply from each.

        Args:
            messages: one per rank.
            expect: key that each reply must hold.
            timeout_s: deadline for all of them.
            fds: descriptors that go to every rank.
            where: says where a rank stands, for the report of a missed deadline.

        Raises:
            GangFailed: a rank failed, spoke out of turn, or the deadline passed.
        """
        self.tell(messages, fds)
        return self.collect(expect, timeout_s=timeout_s, where=where).messages

    def ask_for_fds(self, message: Mapping[str, Json], expect: str, *, timeout_s: float) -> list[list[int]]:
        """Sends one message to every rank of a trusted gang; returns the descriptors that came with each reply.

        Raises:
            GangFailed: a rank failed, or is gone.
        """
        self.tell([message] * self.world_size)
        answers = []
        for rank, wire in enumerate(self._ranks):
            wire.sock.settimeout(timeout_s)
            try:
                reply, _, fds = wire.receive_with_fds()
            except (WireError, TimeoutError) as error:
                raise self._first_failure(str(error)) from None
            finally:
                wire.sock.settimeout(SEND_TIMEOUT_S)
            self._note(rank, dict(reply), expect)
            answers.append(fds)
        if self._errors:
            raise self._first_failure()
        return answers

    def tell(self, messages: Sequence[Mapping[str, Json]], fds: Sequence[int] = (), raw: bytes = b"") -> None:
        """Sends one message to each rank; a rank that is gone is noticed by `collect`.

        Raises:
            GangFailed: a rank has said something that it was not asked for.
        """
        for rank, wire in enumerate(self._ranks):
            if wire.pending():
                raise GangFailed(Failure.INTEGRITY, rank, f"rank {rank} spoke to the evaluator out of turn")
        for wire, message in zip(self._ranks, messages, strict=True):
            try:
                wire.send(message, raw=raw, fds=fds)
            except WireError:
                continue

    def collect(self, expect: str, *, timeout_s: float, where: Callable[[int], str] | None = None) -> Replies:
        """Waits for one reply from each rank; arguments and errors as `ask`."""
        frames: dict[int, tuple[dict[str, Any], bytes]] = {}
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                for rank, wire in enumerate(self._ranks):
                    if rank not in frames and (frame := wire.take()) is not None:
                        frames[rank] = frame
                        self._note(rank, frame[0], expect)
                if len(frames) == self.world_size and not self._errors:
                    ended_ns = time.perf_counter_ns()
                    ordered = [frames[rank] for rank in range(self.world_size)]
                    return Replies([message for message, _ in ordered], [raw for _, raw in ordered], ended_ns)
                if self._errors or self._ended:
                    raise self._first_failure()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._missed_deadline(set(range(self.world_size)) - set(frames), timeout_s, where)
                self._listen(left)
        except ProtocolError as error:
            raise GangFailed(Failure.INTEGRITY, None, f"a rank sent what its program does not: {error}") from None
        except WireError as error:
            raise self._first_failure(str(error)) from None

    def run_block(
        self,
        orders: Sequence[Mapping[str, Json]],
        *,
        timeout_s: float,
        stage: Callable[[], Processors | None] | None = None,
        where: Callable[[int], str] | None = None,
    ) -> tuple[int, list[dict[str, Any]]]:
        """Arms every rank and freezes the gang, stages its inputs, opens the gate, and waits until the last is done.

        Where staging names processors, the ranks run there from then on: what was found out about them does not hold
        for long, and frozen ranks cannot move themselves.

        Returns:
            Nanoseconds from opening the gate to the last completion, and the replies.
        """
        self.ask(orders, "armed", timeout_s=timeout_s, where=where)
        self.freeze()
        if stage is not None and (processors := stage()) is not None:
            self._move(processors)
        go: Mapping[str, Json] = {"go": True}
        began_ns = time.perf_counter_ns()
        self.tell([go] * self.world_size)
        self.thaw()
        replies = self.collect("done", timeout_s=timeout_s, where=where)
        return replies.ended_ns - began_ns, replies.messages

    def _note(self, rank: int, message: dict[str, Any], expect: str) -> None:
        """Looks whether a reply is an error, and of the expected kind."""
        error = message.get("error")
        if isinstance(error, dict):
            self._errors[rank] = error
        elif expect not in message:
            said = ", ".join(sorted(message))[:80]
            raise GangFailed(Failure.INTEGRITY, rank, f"rank {rank} sent {said!r} where {expect!r} was due")

    def freeze(self) -> None:
        """Stops every rank with all its threads, and ends what they have started; returns when that is done."""
        deadline = time.monotonic() + 1.0
        while True:
            self._signal(signal.SIGSTOP)
            while not all(stat(fd)[0] in "TtZX" for fd in self._pidfds):
                if time.monotonic() > deadline:
                    raise GangFailed(Failure.RUNTIME_ERROR, None, "a rank could not be stopped")
            if not self._may_start_processes or not end_strays(self._leader_pidfd, self._pidfds):
                return
            if time.monotonic() > deadline:
                raise GangFailed(Failure.RUNTIME_ERROR, None, "processes that a rank has started could not be ended")

    def _move(self, processors: Processors) -> None:
        for pidfd, own in zip(self._pidfds, processors, strict=True):
            pid = pid_of(pidfd)
            if pid is not None:
                with contextlib.suppress(OSError):  # it may end meanwhile; what may not be moved here runs where it is
                    move_to(own, pid)

    def thaw(self) -> None:
        """Lets frozen ranks go on."""
        self._signal(signal.SIGCONT)

    def processor_ticks(self) -> int:
        """Processor time of all ranks since they began, in clock ticks; it stands still while they are frozen."""
        return sum(stat(pidfd)[1] for pidfd in self._pidfds)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are running; a frozen rank is."""
        return not select.select(self._pidfds, [], [], 0)[0]

    def close(self) -> None:
        """Ends every process of the gang; calling it again changes nothing."""
        if self._closed:
            return
        self._closed = True
        if self._isolated:
            send(self._leader_pidfd, signal.SIGKILL)  # process 1: the kernel ends its whole namespace
        self._leader.close()
        if not select.select([self._leader_pidfd], [], [], 5.0)[0]:
            send(self._leader_pidfd, signal.SIGKILL)
            for pidfd in self._pidfds:
                send(pidfd, signal.SIGKILL)
            select.select([self._leader_pidfd], [], [], 5.0)
        os.close(self._leader_pidfd)
        if hasattr(self, "_poll"):
            self._poll.close()
        self._release()

    def _release(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
        for wire in (self._leader, *self._ranks):
            wire.close()
        os.close(self._output_fd)
        self._remove_scratch()

    def _signal(self, number: signal.Signals) -> None:
        for pidfd in self._pidfds:
            send(pidfd, number)

    def _listen(self, seconds: float) -> None:
        """Takes in what arrives first: replies, ends of ranks, output."""
        for fd, _ in self._poll.poll(seconds):
            if fd in self._wires:
                try:
                    self._ranks[self._wires[fd]].fill()
                except WireError:
                    self._poll.unregister(fd)  # its end is reported by the leader
            elif fd == self._leader.fileno():
                message, _ = self._leader.receive()
                rank, status = message["rank"], message["status"]
                assert isinstance(rank, int) and isinstance(status, int)
                self._ended[rank] = status
            else:
                self._drain()

    def _drain(self) -> None:
        try:
            data = os.read(self._output_fd, 1 << 20)
        except BlockingIOError:
            return
        if not data and hasattr(self, "_poll"):
            self._poll.unregister(self._output_fd)
        self._output_bytes += len(data)
        self._output = (self._output + data)[-KEPT_OUTPUT_BYTES:]
        if self._output_bytes > MAX_OUTPUT_BYTES:
            raise GangFailed(
                Failure.RUNTIME_ERROR,
                None,
                f"the ranks wrote more than {MAX_OUTPUT_BYTES >> 20} MiB to stdout and stderr",
            )

    def _first_failure(self, said: str = "") -> GangFailed:
        """Listens a little longer, then blames the rank that fell first."""
        began = time.monotonic()
        while (
            left := began + (AFTERMATH_S if cause_is_known(self._ended, self._errors) else CAUSE_S) - time.monotonic()
        ) > 0:
            try:
                self._listen(left)
                for rank, wire in enumerate(self._ranks):
                    frame = wire.take()
                    if frame is not None and "error" in frame[0]:  # a rank that is done says nothing of the cause
                        self._note(rank, frame[0], "error")
            except (WireError, GangFailed):
                break
        return first_failure(self._ended, self._errors, said)

    def _missed_deadline(self, missing: set[int], timeout_s: float, where: Callable[[int], str] | None) -> GangFailed:
        """Looks at the unfinished ranks for a moment: do they compute, or wait?"""
        before = {rank: stat(self._pidfds[rank])[1] for rank in missing}
        running = dict.fromkeys(missing, 0)
        for _ in range(SAMPLES):
            time.sleep(SAMPLING_S / SAMPLES)
            for rank in missing:
                running[rank] += stat(self._pidfds[rank])[0] == "R"
        # On a busy machine a rank that computes gets few ticks, yet it is ready to run whenever one looks.
        busy = {
            rank for rank in missing if stat(self._pidfds[rank])[1] - before[rank] > 2 or running[rank] > SAMPLES // 2
        }
        places = {rank: where(rank) if where is not None else "" for rank in sorted(missing)}
        return missed_deadline(places, busy, timeout_s)
