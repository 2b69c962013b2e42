"""The evaluator's handle on the persistent reference gang of one world size."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TypeVar

from pkb_gym.engine.compare.check import RankCheck
from pkb_gym.engine.compare.layout import BlockPlan, Workload, align
from pkb_gym.engine.errors import InfrastructureError, ReferenceOutOfMemory
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.handover_ends import HandoverLibraries
from pkb_gym.engine.gangs.heaps import DeviceHeap, SharedHeap, SymmetricHeap
from pkb_gym.engine.gangs.rank_processes import Processors
from pkb_gym.engine.gangs.staging_traffic import StagingTraffic
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.hardware.division import division
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.reference.dumped_tensor import Dumped
from pkb_gym.engine.reference.orders import (
    AllocateHeaps,
    BlockEnded,
    BlockFinished,
    BlockOrder,
    BlockSettled,
    Captured,
    CaptureGraphs,
    ClearCandidateHeap,
    Compared,
    CompareOutputs,
    DeliveryTimed,
    DumpTensors,
    EndBlock,
    KeepBlock,
    MakeInputs,
    MapHeaps,
    Ready,
    Release,
    ReplayGraphs,
    RunBaseline,
    Staged,
    StageOrder,
    Start,
    TakeWorkload,
    TimeDelivery,
    WarmUp,
)
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Claims, Dialect, RunNullBlock

TIMEOUT_S = 600.0
"""Deadline in seconds of one order to the reference gang; its code is trusted, so this only ends what has gone
wrong."""

REGISTERING_TIMEOUT_S = 60.0
"""Deadline in seconds of a capture on registered memory: where a rank fails at it, the others wait for it."""

SEGMENT_ALIGNMENT_BYTES = 64 << 20
"""Alignment of device memory: far above what the driver asks for, so that few sizes differ."""

Reply = TypeVar("Reply", bound=WireMessage)


class ReferenceGang:
    """Makes inputs, runs the baseline, compares; see `reference/program.py` for its other end.

    Args:
        zygote: The trusted zygote.
        device: Kind of device that the ranks run on.
        world_size: Number of ranks.
        threads: Processor threads that each rank computes with.
        libraries: The compiled handovers.
        ranks_per_gpu: Neighbouring ranks that share a GPU.

    Attributes:
        idle_us: Microseconds that the slowest rank's device took to answer just before the last block; None on
            the CPU.
        host_ns: Nanoseconds of the slowest rank's host on the baseline's last block, before it waited for the device.
    """

    def __init__(
        self,
        zygote: Zygote,
        device: Device,
        world_size: int,
        threads: int,
        libraries: HandoverLibraries,
        ranks_per_gpu: int = 1,
    ) -> None:
        assert device != "emulated", "the baseline has processes of its own on every device"
        self.device: Device = device
        self.world_size = world_size
        self.idle_us: float | None = None
        self.host_ns = 0
        self._failed = self._staged = self._rests = False
        self._device_heaps: tuple[DeviceHeap, DeviceHeap] | None = None
        self._staging_traffic = StagingTraffic()
        # Where ranks meet, now and whenever they make a group: a file without a name, gone with the last of them.
        store = os.memfd_create("pkb-rendezvous", os.MFD_CLOEXEC)
        try:
            self._gang = Gang(zygote, "pkb_gym.engine.reference.program", world_size, None)
            timed = tuple(sorted(division().timed)) if device == "cuda" else ()
            start = Start(device, threads, ranks_per_gpu, timed)
            self._exchange(start, Ready, fds=(store, *libraries.reference_fds))
        finally:
            os.close(store)

    @contextlib.contextmanager
    def heaps(self, segment_bytes: int) -> Iterator[tuple[SymmetricHeap, SymmetricHeap]]:
        """The reference heap and the candidate's, of at least that many bytes a rank.

        On the CPU they are made for one evaluation; device memory is kept from one to the next, and zeroed.
        """
        if self.device == "cpu":
            with (
                SharedHeap(segment_bytes, self.world_size) as mine,
                SharedHeap(segment_bytes, self.world_size, conductors=mine) as theirs,
            ):
                self._map(mine, theirs)
                yield mine, theirs
            return
        if self._device_heaps is None or self._device_heaps[0].segment_bytes < segment_bytes:
            self._allocate(segment_bytes)
        else:
            self._device_heaps[1].reset()
            self._exchange(ClearCandidateHeap(), Ready, fds=(self._device_heaps[1].fds[0],))
        assert self._device_heaps is not None
        yield self._device_heaps

    def _allocate(self, segment_bytes: int) -> None:
        """Has each rank allocate a segment of each heap on its device, and map everybody's."""
        segment_bytes = align(segment_bytes, SEGMENT_ALIGNMENT_BYTES)
        self._close_device_heaps()
        try:
            fds = self._gang.exchange_for_fds(AllocateHeaps(segment_bytes), Ready, timeout_s=TIMEOUT_S)
        except GangFailed as failed:
            raise self._fault(failed) from None
        mine, theirs = (DeviceHeap(segment_bytes, [pair[which] for pair in fds]) for which in (0, 1))
        self._device_heaps = mine, theirs
        self._map(mine, theirs)

    def _map(self, mine: SymmetricHeap, theirs: SymmetricHeap) -> None:
        self._exchange(MapHeaps(mine.segment_bytes), Ready, fds=(*mine.fds, *theirs.fds))

    def take(
        self,
        workload: Workload,
        source: str,
        scratch_bytes: int,
        segment_bytes: int,
        rank_fds: Sequence[Sequence[int]],
    ) -> None:
        """Hands over what is to be evaluated.

        Args:
            workload: Workload of a problem that the catalogue has found.
            source: Text of the baseline.
            scratch_bytes: Size of the symmetric scratch in bytes.
            segment_bytes: Size of one rank's segment of a heap in bytes.
            rank_fds: Descriptors for each rank, see `TakeWorkload`.
        """
        order = TakeWorkload(WorkloadSpec.of(workload), source, scratch_bytes, segment_bytes)
        self._exchange(order, Ready, own_fds=rank_fds)

    def make(self, plan: BlockPlan, *, timed: bool) -> None:
        """Draws the inputs of a block."""
        with self.making(plan, timed=timed):
            pass

    @contextlib.contextmanager
    def making(self, plan: BlockPlan, *, timed: bool) -> Iterator[None]:
        """Draws the inputs of a block meanwhile; they are there at the end, whatever happens inside."""
        trials = tuple(planned.trial for planned in plan.sets)
        given = plan.sets if plan.is_placed else ()
        offsets, recurrences = tuple(one.offset for one in given), tuple(one.recurrence for one in given)
        with self._one_exchange():
            self._gang.send([MakeInputs(trials, timed, offsets, recurrences)] * self.world_size)
        try:
            yield
        finally:
            with self._one_exchange():
                self._gang.collect(Ready, timeout_s=TIMEOUT_S)

    def stage(self, orders: Sequence[StageOrder]) -> Processors | None:
        """Puts the inputs into the candidate's heap and poisons its outputs; `end_block` must follow.

        Args:
            orders: One for each rank: whether everything is in place before the block begins, or handed over call by
                call.

        Returns:
            The processors of each rank that run at full speed just now; None on the CPU, where ranks need all of them.
        """
        self._staged = True
        replies = self._send(orders, Staged)
        self._note_idle([reply.idle_us for reply in replies])
        processors = [reply.processors for reply in replies if reply.processors is not None]
        return processors or None

    def end_block(self) -> list[BlockEnded]:
        """The report of the handovers of the staged block; the candidate's gang must be frozen, or gone."""
        self._staged = False
        return self._exchange(EndBlock(), BlockEnded)

    @property
    def has_staged(self) -> bool:
        """Whether a block has been staged that has to be ended; a gang that has failed has none any more."""
        return self._staged and not self._failed

    def run(
        self, calls: int, dialect: Dialect, *, handovers: bool = False, pad_ns: int = 0, staged_bytes: int = 0
    ) -> int:
        """Runs the baseline on the block's inputs; returns nanoseconds by the evaluator's clock.

        Args:
            calls: Number of calls in the block, at least 1.
            dialect: Dialect of the candidate.
            handovers: Whether arguments are handed over call by call, as in the candidate's timed blocks.
            pad_ns: Nanoseconds that the host waits at each handover beyond its launch, see `EnqueuedHandover`.
            staged_bytes: Bytes that staging writes for each rank of a candidate before its block; ranks on the CPU
                find their caches in a like state then, and GPUs clear theirs in any case.
        """
        return self._run_block(RunBaseline(calls, dialect, handovers, pad_ns), staged_bytes)

    def run_null_block(self, order: RunNullBlock) -> int:
        """A block of calls of nothing; returns nanoseconds by the evaluator's clock."""
        return self._run_block(order)

    def capture(self, calls: int, dialect: Dialect, *, registered: bool = False) -> bool:
        """Captures the baseline in CUDA graphs, on the inputs of the block's first calls.

        Args:
            calls: Number of calls in the block, at least 1.
            dialect: Dialect of the candidate.
            registered: Whether arguments and allocations lie in memory that is registered with NCCL.

        Returns:
            Whether that can be done. Where breaking it off cost a rank its context, the gang is of no further use.
        """
        orders = [CaptureGraphs(calls, dialect, registered)] * self.world_size
        timeout_s = REGISTERING_TIMEOUT_S if registered else TIMEOUT_S
        with self._one_exchange():
            replies = self._gang.exchange(orders, Captured, timeout_s=timeout_s)
        if not all(reply.sound for reply in replies):
            self._failed = True
            self.close()
        return all(reply.captured for reply in replies)

    def replay(self, calls: int) -> int:
        """Launches the captured graphs, one after the other; returns nanoseconds by the evaluator's clock."""
        return self._run_block(ReplayGraphs(calls))

    @property
    def is_sound(self) -> bool:
        """Whether it can be used."""
        return not self._failed

    def _run_block(self, order: BlockOrder, staged_bytes: int = 0) -> int:
        def stage() -> None:
            if self.device == "cpu" and staged_bytes:
                self._staging_traffic.cause(self._gang.processes.pidfds, staged_bytes)

        orders = [order] * self.world_size
        with self._one_exchange():
            nanoseconds, _ = self._gang.run_block(orders, BlockFinished, timeout_s=TIMEOUT_S, stage=stage)
            settled = self._gang.collect(BlockSettled, timeout_s=TIMEOUT_S).messages
        self._note_idle([reply.idle_us for reply in settled])
        self.host_ns = max(reply.host_ns for reply in settled)
        return nanoseconds

    @property
    def run_delays_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank waited for a processor during the last block, see `Gang`."""
        return self._gang.run_delays_ns

    def delivery_us(self, dialect: Dialect) -> float:
        """Microseconds that the slowest rank takes to copy a call's results into the heap; see `TimeDelivery`.

        Args:
            dialect: Dialect of the candidate.
        """
        return max(reply.delivery_us for reply in self._exchange(TimeDelivery(dialect), DeliveryTimed))

    def warm_up(self, calls: int) -> None:
        """Runs the baseline without looking at the clock or keeping results."""
        self._exchange(WarmUp(calls), Ready)

    def keep(self, folder: str, calls: int) -> None:
        """Has each rank write its part of the block's calls; see `KeepBlock`."""
        self._exchange(KeepBlock(folder, calls), Ready)

    def dump(self, folder: str, calls: Sequence[int], tensors: Sequence[Dumped]) -> None:
        """Has each rank write some of its tensors; see `DumpTensors`."""
        self._exchange(DumpTensors(folder, tuple(calls), tuple(tensors)), Ready)

    def compare(self, claims: Sequence[Sequence[Claims]], dialect: Dialect) -> list[RankCheck]:
        """Judges the candidate's outputs of the block.

        Args:
            claims: Claims per rank and call.
            dialect: Dialect of the candidate.
        """
        orders = [CompareOutputs(tuple(of_rank), dialect) for of_rank in claims]
        return [RankCheck.model_validate(reply.check) for reply in self._send(orders, Compared)]

    def release(self) -> None:
        """Lets go of heaps and results; a gang that has failed holds none any more.

        On the CPU its ranks are stopped until the next order: gloo looks for messages a hundred times a second, in a
        thread of each.
        """
        if self._failed:
            return
        self._exchange(Release(), Ready)
        if self.device == "cpu":
            self._gang.processes.signal(signal.SIGSTOP)
            self._rests = True

    def close(self) -> None:
        """Ends it."""
        self._gang.close()
        self._close_device_heaps()

    def _close_device_heaps(self) -> None:
        for heap in self._device_heaps or ():
            heap.close()
        self._device_heaps = None

    def _note_idle(self, answers_us: Sequence[float | None]) -> None:
        answered_us = [answer_us for answer_us in answers_us if answer_us is not None]
        self.idle_us = max(answered_us, default=None)

    def _exchange(
        self,
        order: WireMessage,
        expect: type[Reply],
        fds: Sequence[int] = (),
        own_fds: Sequence[Sequence[int]] = (),
    ) -> list[Reply]:
        return self._send([order] * self.world_size, expect, fds, own_fds)

    def _send(
        self,
        orders: Sequence[WireMessage],
        expect: type[Reply],
        fds: Sequence[int] = (),
        own_fds: Sequence[Sequence[int]] = (),
    ) -> list[Reply]:
        with self._one_exchange():
            return self._gang.exchange(orders, expect, timeout_s=TIMEOUT_S, fds=fds, own_fds=own_fds)

    @contextlib.contextmanager
    def _one_exchange(self) -> Iterator[None]:
        """Context of one order with its replies: a gang that is left in the middle, as by Ctrl-C, takes no other."""
        if self._rests:
            self._rests = False
            self._gang.processes.thaw()
        try:
            yield
        except GangFailed as failed:
            raise self._fault(failed) from None
        except BaseException:
            self._failed = True
            self.close()
            raise

    def _fault(self, failed: GangFailed) -> InfrastructureError:
        self._failed = True
        self.close()
        is_short = failed.failure is Failure.OUT_OF_MEMORY and not failed.killed
        kind = ReferenceOutOfMemory if is_short else InfrastructureError
        return kind(f"the reference gang failed: {failed}\n{self._gang.output}".strip())
