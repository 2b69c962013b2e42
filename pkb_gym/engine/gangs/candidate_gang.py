"""The evaluator's handle on one candidate's gang; see `rankside/candidate.py` for its other end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from pkb_gym.engine.compare.call_specs import call_runs
from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.handover_ends import HandoverEnds
from pkb_gym.engine.gangs.heaps import SymmetricHeap, memory_file
from pkb_gym.engine.gangs.rank_processes import Processors
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import HostDevice
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.claims import read_claims
from pkb_gym.engine.wire.emulated_orders import Schedule
from pkb_gym.engine.wire.messages import ProtocolError, WireMessage
from pkb_gym.engine.wire.orders import (
    Bind,
    BlockDone,
    Bound,
    Claims,
    Dialect,
    HandoverKind,
    HeapMapped,
    Load,
    Loaded,
    MapHeap,
    NullDone,
    Prepare,
    Prepared,
    ProfileBlock,
    ProfileDone,
    RankSetting,
    RunBlock,
    RunNullBlock,
)

PREPARE_TIMEOUT_S = 60.0
LOAD_TIMEOUTS = 3
"""Deadlines of a block that loading may take, and then the first binding: `torch.compile` imports for seconds, on each
rank, and NCCL makes the groups of the arguments, for seconds where the driver makes contexts for others meanwhile."""

MIN_BETWEEN_S, TIMEOUTS_BETWEEN = 30.0, 3
"""Limit of the time between blocks, of all of them together, in seconds or deadlines, whichever is longer: honest ranks
need milliseconds to bind arguments, to reach the gate and to be frozen."""

STOPPING_NS = 1_000_000
"""A thread that merely waits for a processor stops within this; the time of one at work for longer counts."""

Reply = TypeVar("Reply", bound=WireMessage)


@dataclass(frozen=True)
class Job:
    """The work of a gang.

    Attributes:
        problem: Problem that the candidate solves.
        dialect: Dialect of the candidate.
        scratch_bytes: Symmetric scratch of each rank.
        memory_bytes: Main memory that each rank may allocate.
        stack_trace: The library that records the call stack of a crashed rank; None for none.
        gsan_seed: Seed of Triton's GSan, as in `Load`; None to run the candidate as it is.
    """

    problem: Problem
    dialect: Dialect
    scratch_bytes: int
    memory_bytes: int
    stack_trace: bytes | None = None
    gsan_seed: int | None = None


@dataclass(frozen=True)
class BlockSetting:
    """The sequence of calls in a block.

    Attributes:
        handovers: Kind of the handovers between calls.
        pad_ns: Nanoseconds that the host waits at each handover beyond its launch, see `EnqueuedHandover`.
        holds_ns: Nanoseconds of the holds of each rank's calls, as in `RunBlock`; empty for none.
        congestions_ns: Nanoseconds of the congestion of each rank's calls, as in `RunBlock`; empty for none.
        stopped_rank: A rank that is stopped now and then for about a millisecond; None for none.
        schedule: Order of execution of emulated ranks; None for all together.
    """

    handovers: HandoverKind = "none"
    pad_ns: int = 0
    holds_ns: tuple[tuple[int, ...], ...] = ()
    congestions_ns: tuple[tuple[int, ...], ...] = ()
    stopped_rank: int | None = None
    schedule: Schedule | None = None


class CandidateGang:
    """A gang that runs one candidate. It starts thawed; between blocks it is kept frozen.

    Args:
        zygote: The sandboxed zygote.
        device: Kind of device that the ranks run on.
        world_size: Number of ranks.
        allow_processes: Whether ranks may start programs.
        ranks_per_gpu: Neighbouring ranks that share a GPU.
    """

    def __init__(
        self,
        zygote: Zygote,
        device: HostDevice,
        world_size: int,
        *,
        allow_processes: bool = False,
        ranks_per_gpu: int = 1,
    ) -> None:
        self.timeout_s = PREPARE_TIMEOUT_S
        self._device: HostDevice = device
        self._ranks_per_gpu = ranks_per_gpu
        self._epoch = 1
        self._between_s = 0.0
        self._segments_when_frozen: int | None = None
        self._job: Job | None = None
        self._heap: SymmetricHeap | None = None
        limits = Confinement(None, allow_processes=allow_processes, pins_memory=device == "cuda")
        self._gang = Gang(zygote, ".candidate", world_size, limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are running."""
        return self._gang.processes.all_run()

    def close(self) -> None:
        """Ends it; calling it again changes nothing."""
        self._gang.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks wrote."""
        return self._gang.output

    def output_of(self, rank: int) -> str:
        """The tail of what one rank has written to stdout and stderr so far, as it wrote it."""
        return self._gang.output_of(rank)

    @property
    def pidfds(self) -> Sequence[int]:
        """Process descriptor of each rank."""
        return self._gang.processes.pidfds

    def prepare(
        self, dialect: Dialect, *, one_queue: bool = False, imports: Sequence[str] = (), all_gpus: bool = False
    ) -> None:
        """Gets its ranks ready before a candidate is known.

        Args:
            dialect: Dialect of the candidates that it can serve.
            one_queue: Whether a single hardware queue will do, see `rankside.devices.CudaDevice`.
            imports: Names of modules that such candidates may use.
            all_gpus: Whether ranks of the native dialect see their peers' GPUs too.

        Raises:
            InfrastructureError: they could not be prepared.
        """
        try:
            self._exchange(Prepare(self._setting, dialect, one_queue, tuple(imports), all_gpus), Prepared)
        except GangFailed as failed:
            raise InfrastructureError(f"a gang could not be prepared: {failed}\n{self.output}") from None

    def map_heap(self, dialect: Dialect, heap: SymmetricHeap, handovers: HandoverEnds) -> None:
        """Hands the ranks their heap, and their ends of the handovers.

        Raises:
            InfrastructureError: they could not map it.
        """
        order = MapHeap(self._setting, dialect, len(heap.fds), heap.segment_bytes)
        own_fds = [(*pair, *handovers.libraries.candidate_fds) for pair in handovers.eventfds]
        try:
            self._exchange(order, HeapMapped, fds=heap.fds, own_fds=own_fds)
        except GangFailed as failed:
            raise InfrastructureError(f"a gang could not map its heap: {failed}\n{self.output}") from None
        self._heap = heap

    def run_null_block(self, order: RunNullBlock, stage: Callable[[], Processors | None]) -> int:
        """A block of calls of nothing, while no candidate is loaded.

        Args:
            order: Order of the block.
            stage: Function that puts the inputs into the heap, see `run`.

        Returns:
            Nanoseconds by the evaluator's clock.

        Raises:
            InfrastructureError: a rank fell, which is no failure of a candidate.
        """
        orders = [order] * self._gang.world_size
        try:
            return self._gang.run_block(orders, NullDone, timeout_s=self.timeout_s, stage=stage)[0]
        except GangFailed as failed:
            raise InfrastructureError(f"a gang failed before its candidate was loaded: {failed}") from None

    def load(self, job: Job, artifact: Artifact, source: str) -> None:
        """Loads the candidate on every rank.

        Raises:
            GangFailed: it could not be loaded.
        """
        self._job = job
        extensions = {name: 1 + index for index, name in enumerate(artifact.extensions)}
        order = Load(
            dialect=job.dialect,
            processors=host.processors(),
            scratch_bytes=job.scratch_bytes,
            memory_bytes=job.memory_bytes,
            returns=job.problem.returns,
            signature=cpp_signature(job.problem),
            extensions=extensions,
            stack_trace=None if job.stack_trace is None else 1 + len(extensions),
            gsan_seed=job.gsan_seed,
        )
        fds: list[int] = []
        try:
            fds.append(memory_file("candidate", source.encode() if artifact.binary is None else artifact.binary))
            for name, library in artifact.extensions.items():
                fds.append(memory_file(name, library))
            if job.stack_trace is not None:
                fds.append(memory_file("pkb-stack-trace", job.stack_trace))
            self._exchange(order, Loaded, fds=fds, timeout_s=LOAD_TIMEOUTS * self.timeout_s)
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def _setting(self) -> RankSetting:
        return RankSetting(self._device, host.threads_per_rank(self._gang.world_size), self._ranks_per_gpu)

    def _exchange(
        self,
        order: WireMessage,
        expect: type[Reply],
        fds: Sequence[int] = (),
        own_fds: Sequence[Sequence[int]] = (),
        timeout_s: float | None = None,
    ) -> None:
        orders = [order] * self._gang.world_size
        deadline_s = self.timeout_s if timeout_s is None else timeout_s
        self._gang.exchange(orders, expect, timeout_s=deadline_s, fds=fds, own_fds=own_fds, heap=self._heap)

    def bind(self, plan: BlockPlan) -> None:
        """Makes the arguments of a block.

        Raises:
            GangFailed: a rank fell.
        """
        assert self._job is not None
        problem, dialect = self._job.problem, self._job.dialect
        orders = [
            Bind(call_runs(problem, plan, rank, dialect), plan.partitions) for rank in range(self._gang.world_size)
        ]
        is_first = self._epoch == 1
        timeout_s = LOAD_TIMEOUTS * self.timeout_s if is_first else self._left_between_s
        with contextlib.nullcontext() if is_first else self._between_blocks():
            self._gang.exchange(orders, Bound, timeout_s=timeout_s, heap=self._heap)

    @property
    def _left_between_s(self) -> float:
        """The deadline of what lies between two blocks; several of them have `MIN_BETWEEN_S` or more together."""
        in_all_s = max(MIN_BETWEEN_S, TIMEOUTS_BETWEEN * self.timeout_s)
        return min(self.timeout_s, max(0.0, in_all_s - self._between_s))

    @contextlib.contextmanager
    def _between_blocks(self) -> Iterator[None]:
        """Counts the time that the gang takes meanwhile."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._between_s += time.monotonic() - began

    def run(
        self, sets: Sequence[int], stage: Callable[[], Processors | None], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]:
        """Calls the candidate once on each of these sets, then freezes the gang.

        Args:
            sets: Indices into the bound block.
            stage: Puts the inputs into the heap; called while every rank stands frozen before the gate, so that no
                thread of a candidate sees them before the clock runs. Names the processors that the ranks are to run
                on then, if it matters.
            setting: Sequence of the block's calls.

        Returns:
            Nanoseconds by the evaluator's clock until no thread of a rank was at work, and each rank's claims of each
            call.

        Raises:
            GangFailed: a rank fell, the deadline passed, or its claims do not fit the calls.
        """
        self.arm(sets, setting)
        return self.run_armed(sets, stage, setting)

    def arm(self, sets: Sequence[int], setting: BlockSetting) -> None:
        """Has the ranks come to the gate of a block, and freezes them; `run_armed` must follow.

        Args:
            sets: Indices into the bound block.
            setting: Sequence of the block's calls.

        Raises:
            GangFailed: a rank fell, or the deadline passed.
        """
        none = ((),) * self._gang.world_size
        self._arm(
            [
                RunBlock(tuple(sets), self._epoch, setting.handovers, setting.pad_ns, holds_ns, congestions_ns)
                for holds_ns, congestions_ns in zip(
                    setting.holds_ns or none, setting.congestions_ns or none, strict=True
                )
            ]
        )

    def run_armed(
        self, sets: Sequence[int], stage: Callable[[], Processors | None], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]:
        """Runs the block that the ranks have been armed for; arguments, result and errors as `run`."""
        nanoseconds, done = self._run_armed(BlockDone, stage, setting.stopped_rank)
        return nanoseconds, [_claims_of(rank, report, len(sets)) for rank, report in enumerate(done)]

    def profile(
        self, sets: Sequence[int], stage: Callable[[], Processors | None], link_bytes_per_s: float | None
    ) -> list[ProfileDone]:
        """Profiles a block of calls.

        Args:
            sets: Indices into the bound block.
            stage: Function that puts the inputs into the heap, see `run`.
            link_bytes_per_s: Most bytes per second that can leave or enter a GPU by its links; None without peers.

        Returns:
            Each rank's report.

        Raises:
            GangFailed: a rank fell, or the deadline passed.
        """
        self._arm([ProfileBlock(tuple(sets), self._epoch, link_bytes_per_s)] * self._gang.world_size)
        return self._run_armed(ProfileDone, stage)[1]

    def _arm(self, orders: Sequence[RunBlock] | Sequence[ProfileBlock]) -> None:
        self._epoch += len(orders[0].sets)
        with self._between_blocks():
            self._gang.arm(orders, timeout_s=self._left_between_s, heap=self._heap)
        self._segments_when_frozen = self._gang.processes.segments_sent()

    def _run_armed(
        self, expect: type[Reply], stage: Callable[[], Processors | None], stopped_rank: int | None = None
    ) -> tuple[int, list[Reply]]:
        nanoseconds, replies = self._gang.run_armed(
            expect, timeout_s=self.timeout_s, stage=stage, heap=self._heap, stopped_rank=stopped_rank
        )
        with self._between_blocks():
            stopping_ns = self._gang.processes.freeze()
        self._segments_when_frozen = self._gang.processes.segments_sent()
        return nanoseconds + (stopping_ns if stopping_ns > STOPPING_NS else 0), replies

    def processor_ticks(self) -> int:
        """Processor time of all ranks so far, in clock ticks."""
        return self._gang.processes.processor_ticks()

    @property
    def run_delays_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank waited for a processor during the last block, see `Gang`."""
        return self._gang.run_delays_ns

    def loopback_bytes(self) -> int:
        """Bytes that its ranks have sent each other by the network; 0 where they cannot be counted."""
        return self._gang.processes.loopback_bytes() or 0

    def frozen_segments(self) -> int:
        """TCP segments with new data that the kernel has sent for its ranks since they were frozen after a block."""
        now, before = self._gang.processes.segments_sent(), self._segments_when_frozen
        return 0 if now is None or before is None else now - before

    def run_on(self, seconds: float) -> None:
        """Lets frozen ranks go on for a while.

        Raises:
            GangFailed: they cannot be frozen again.
        """
        self.thaw()
        time.sleep(seconds)
        self._gang.processes.freeze()
        self._segments_when_frozen = self._gang.processes.segments_sent()

    def thaw(self) -> None:
        """Lets the ranks go on."""
        self._segments_when_frozen = None
        self._gang.processes.thaw()

    def kill(self) -> None:
        """Ends the ranks, of which nothing more is wanted but what they wrote."""
        self._gang.processes.kill()


def _claims_of(rank: int, done: BlockDone, calls: int) -> Sequence[Claims]:
    """The claims of a rank for each of so many calls."""
    try:
        claims = read_claims(done.claims)
    except ProtocolError as error:
        what = f"rank {rank} sent something that its program does not: {error}"
        raise GangFailed(Failure.INTEGRITY, rank, what) from None
    if len(claims) != calls:
        raise GangFailed(Failure.INTEGRITY, rank, f"rank {rank} reported {len(claims)} calls of {calls}")
    return claims
