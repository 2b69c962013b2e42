"""The program of the process that emulates the GPUs of all ranks; see `emulated_orders`.

The emulator's scheduler has one rank's thread or GPU run at a time. Arrival and departure are operations of a rank's
stream: when the scheduler reaches one, the reference rank of the same number hands over as it does for gangs, by the
shared heap, and this process copies between that and the memory of the emulated GPUs.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass, field
from typing import cast

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import unroll
from pkb_gym.engine.wire.emulated_orders import (
    MAX_FINDINGS,
    MAX_TEXT,
    BindRanks,
    CallMemory,
    DetectorFinding,
    Fault,
    FindingClass,
    LoadCopies,
    NamedTensor,
    OpenWorld,
    PeerBytes,
    RanksDone,
    RunRanks,
    WorldOpened,
)
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.orders import Armed, Bound, Claims, Failed, Go, Load, Loaded
from rank_emulator import Access, EmulatorError, Ended, Finding, Outcome, RegionKind, Schedule, World

from . import confine
from .crash import signal_tracer, trace_native_code
from .devices import CpuDevice
from .emulated_rank import EmulatedDevice, EmulatedHeap, EmulatedNative
from .failures import CandidateError, kind_of, trace_of
from .heap import Heap
from .native import library_path
from .started_libraries import start_emulated

FAULTS: dict[Outcome, str] = {
    Outcome.DEADLOCK: "deadlock",
    Outcome.STEP_LIMIT: "timeout",
    Outcome.STOPPED: "timeout",
}
"""Outcome -> value of `Failure`; all others are runtime errors."""


LIBRARY_HEAP_BYTES = 64 << 20
"""Least heap of NVSHMEM, the upper half of a segment of the emulator, where a candidate uses it."""


def main(wire: Wire, rank: int, world_size: int) -> None:  # as of every rank program; it is one process
    """Serves one evaluator until the connection ends."""
    order, _, fds = wire.receive_with_fds(OpenWorld)
    CpuDevice(0, 1, 1).prepare()
    ranks = EmulatedRanks(order, fds)
    wire.send(WorldOpened())
    load, _, copies = wire.receive_with_fds(LoadCopies)
    confine.limit_resources({"RLIMIT_AS": load.memory_bytes})
    tracer = copies.pop() if load.has_stack_trace else None
    fault = ranks.load(load, copies)
    if fault is not None:
        wire.send(Failed(fault.kind, fault.text))
        return
    if tracer is not None:
        path = f"/proc/self/fd/{tracer}"
        for loaded in range(order.world_size):
            trace_native_code(path, library_path(loaded))
        ranks.trace_host_accesses(signal_tracer(path))
    wire.send(Loaded())
    while True:
        then, _ = wire.receive(BindRanks, RunRanks)
        if isinstance(then, BindRanks):
            ranks.bind(then)
            wire.send(Bound())
        elif isinstance(then, RunRanks):
            wire.send(Armed())
            wire.receive(Go)
            done = ranks.run(then)
            wire.send(done)
            if done.fault is not None:  # threads that were in a call stay there
                return


@dataclass
class _Block:
    """A block that is being run.

    Attributes:
        order: Order of the evaluator.
        claims: Claims of each rank, call by call.
    """

    order: RunRanks
    claims: dict[int, list[Claims]] = field(default_factory=dict)


class EmulatedRanks:
    """The emulator's world, and the candidate on each of its ranks.

    Args:
        order: Order of the evaluator.
        fds: Descriptors of the heap that is shared with the reference gang, of the emulator, and two eventfds of each
            rank.
    """

    def __init__(self, order: OpenWorld, fds: list[int]) -> None:
        heap_fd, library_fd, *eventfds = fds
        self._world_size, ranks = order.world_size, range(order.world_size)
        self._shared = Heap(heap_fd, order.segment_bytes, order.world_size, 0)
        self._requests, self._replies = eventfds[::2], eventfds[1::2]
        self._world = World(
            f"/proc/self/fd/{library_fd}",
            order.world_size,
            segment_bytes=2 * max(order.segment_bytes, LIBRARY_HEAP_BYTES)
            if order.starts_libraries
            else order.segment_bytes,
            detect_races=order.detect_races,
            strict=order.strict,
            max_findings=MAX_FINDINGS,
            label_output=True,
        )
        self._segments = self._world.segments
        self._memory = [ctypes.addressof(ctypes.c_char.from_buffer(self._world.memory(rank))) for rank in ranks]
        self._foreign: Fault | None = None
        self._ranks: list[EmulatedNative] = []
        self._calls: tuple[CallMemory, ...] = ()
        self._behind_scratch = (0, 0)
        self._starts_libraries = order.starts_libraries
        self._regions: list[int] = []

    def load(self, order: LoadCopies, copies: list[int]) -> Fault | None:
        """Loads a copy of the library on each rank; returns the reason where that is impossible.

        One rank after the other: the dynamic linker's lock is held while a library's constructors run, and one that
        waits for its GPU would wait for ranks that wait for the lock.
        """
        for rank in range(self._world_size):
            segment = self._segments[rank]
            for kind, name, offset, nbytes in (
                (RegionKind.SIGNALS, "signals", abi.SIGNAL_OFFSET, abi.SIGNAL_BYTES),
                (RegionKind.SCRATCH, "scratch", abi.SCRATCH_OFFSET, order.scratch_bytes),
            ):
                self._name(rank, kind, name, segment + offset, nbytes, element_bytes=8)
        loaded: list[EmulatedNative] = []

        def body(rank: int) -> None:
            if rank == len(loaded):
                loaded.append(self._load_rank(order, copies[rank], rank))

        for _ in range(self._world_size):
            ended = self._world.run(body)
            if ended.outcome != Outcome.OK:
                return _fault(ended)
        self._ranks = loaded
        if self._starts_libraries:
            ended = self._world.run(lambda rank: start_emulated(library_path(rank), rank, self._world_size))
            if ended.outcome != Outcome.OK:
                return _fault(ended)
        return None

    def _load_rank(self, order: LoadCopies, fd: int, rank: int) -> EmulatedNative:
        path = f"{library_path(rank)}.copy"
        os.symlink(f"/proc/self/fd/{fd}", path)
        try:
            self._world.load(path)
        except EmulatorError as error:
            raise CandidateError("load_error", str(error)[:MAX_TEXT]) from None
        heap = EmulatedHeap(self._world, rank)
        device = EmulatedDevice(rank, self._world_size, self._world.stream())
        load = Load("native", self._world_size, order.scratch_bytes, 0, "value", order.signature, {})
        native = EmulatedNative(load, fd, heap, device, rank, self._world_size)
        native.world = self._world
        native.check_written = functools.partial(self._check_written, rank)
        return native

    def trace_host_accesses(self, function: int) -> None:
        """Has a function called where host code touches memory of a GPU; see `World.trace_host_accesses`."""
        self._world.trace_host_accesses(function)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def bind(self, order: BindRanks) -> None:
        """Makes the arguments of a block, and names their memory."""
        self._calls, self._behind_scratch = order.calls, order.behind_scratch
        for rank, native in enumerate(self._ranks):
            native.bind(unroll(order.runs[rank]), order.partitions)
        for region in self._regions:
            self._world.remove_region(region)
        self._regions = [
            self._name_tensor(rank, tensor)
            for call in order.calls
            for rank, tensors in enumerate(call.tensors)
            for tensor in tensors
        ]

    def _name_tensor(self, rank: int, tensor: NamedTensor) -> int:
        kind = RegionKind.OUTPUT if tensor.is_output else RegionKind.ARGUMENT
        address = self._segments[rank] + tensor.offset
        return self._name(rank, kind, tensor.name, address, tensor.nbytes, tensor.element_bytes)

    def _name(self, rank: int, kind: RegionKind, name: str, address: int, nbytes: int, element_bytes: int) -> int:
        return self._world.add_region(
            rank, kind, name, address, nbytes, element_bytes=element_bytes, is_initialised=kind != RegionKind.OUTPUT
        )

    def _copy(self, rank: int, call: CallMemory, *, to_gpu: bool) -> None:
        """Copies a call's part of a rank's segment between the shared heap and the emulated GPU."""
        self._copy_bytes(rank, call.offset, call.nbytes, to_gpu=to_gpu)

    def _copy_block(self, order: RunRanks, *, to_gpu: bool) -> None:
        """Copies, on every rank, all calls' parts, and what lies between them and the scratch."""
        begin, end = self._behind_scratch
        for rank in range(self._world_size):
            self._copy_bytes(rank, begin, end - begin, to_gpu=to_gpu)
            for index in order.sets:
                self._copy(rank, self._calls[index], to_gpu=to_gpu)

    def _copy_bytes(self, rank: int, offset: int, nbytes: int, *, to_gpu: bool) -> None:
        shared, own = self._shared.segment(rank) + offset, self._memory[rank] + offset
        ctypes.memmove(own if to_gpu else shared, shared if to_gpu else own, nbytes)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def run(self, order: RunRanks) -> RanksDone:
        """Runs a block."""
        block = _Block(order)
        self._copy_block(order, to_gpu=True)
        schedule = order.schedule
        self._world.set_schedule(Schedule(schedule.policy, schedule.seed), order.max_seconds)
        ended = self._run_together(block) if schedule.policy == "together" else self._run_scheduled(block)
        self._copy_block(order, to_gpu=False)
        fault = self._foreign if ended.outcome == Outcome.OK else _fault(ended)
        claims = tuple(tuple(block.claims[rank]) for rank in range(self._world_size)) if fault is None else ()
        return self._with_findings(RanksDone(claims, fault, ended.steps))

    def _run_together(self, block: _Block) -> Ended:
        """Has all ranks hand over, then all make their call, and so on."""
        order, ranks = block.order, range(self._world_size)
        ended = Ended(Outcome.OK)
        for call, index in enumerate(order.sets):
            for rank in ranks:
                self._hand_over(block, rank, call)
            ended = self._world.run(functools.partial(self._call_one, block, call, index))
            if ended.outcome != Outcome.OK:
                break
        else:
            for rank in ranks:
                self._hand_over(block, rank, len(order.sets))
        return ended

    def _call_one(self, block: _Block, call: int, index: int, rank: int) -> None:
        epoch = block.order.epoch + call
        self._world.arrive(epoch)
        block.claims.setdefault(rank, []).append(self._call(rank, index, epoch))
        self._world.depart(epoch)
        self._world.synchronize()

    def _run_scheduled(self, block: _Block) -> Ended:
        """Has each rank go from call to call on its own."""
        return self._world.run(functools.partial(self._call_all, block))

    def _call_all(self, block: _Block, rank: int) -> None:
        order, claims = block.order, block.claims.setdefault(rank, [])
        for call, index in enumerate(order.sets):
            self._cross(block, rank, call)
            claims.append(self._call(rank, index, order.epoch + call))
        self._cross(block, rank, len(order.sets))
        self._world.synchronize()

    def _call(self, rank: int, index: int, epoch: int) -> Claims:
        """One call; the evaluator sees whose host code it is in."""
        place = self._shared.place(rank)
        place.state, place.call = abi.State.IN_CALL, epoch
        claims = self._ranks[rank].call(index, epoch)
        place.state = abi.State.DONE
        return claims

    def _cross(self, block: _Block, rank: int, crossing: int) -> None:
        """Enqueues the departure of one call and the arrival of the next."""
        epoch = block.order.epoch + crossing
        if crossing:
            self._world.depart(epoch - 1)
        if crossing < len(block.order.sets):
            self._world.arrive(epoch)
        self._world.enqueue(functools.partial(self._hand_over, block, rank, crossing), "handover")

    def _hand_over(self, block: _Block, rank: int, crossing: int) -> None:
        """Has the reference rank hand over; nothing else runs here meanwhile."""
        before = self._calls[block.order.sets[crossing - 1]] if crossing else None
        after = self._calls[block.order.sets[crossing]] if crossing < len(block.order.sets) else None
        if before is not None:
            self._check_outputs(rank, before)
            self._copy(rank, before, to_gpu=False)
        os.eventfd_write(self._requests[rank], 1)
        os.eventfd_read(self._replies[rank])
        for call in (before, after):
            if call is not None:
                self._copy(rank, call, to_gpu=True)
        if after is not None:
            self._initialise(rank, after)

    def _initialise(self, rank: int, call: CallMemory) -> None:
        """Notes that a call's arguments have been written, and its outputs not yet."""
        for tensor in call.tensors[rank]:
            address = self._segments[rank] + tensor.offset
            self._world.set_initialised(address, tensor.nbytes, is_initialised=not tensor.is_output)
            if tensor.is_updated:
                self._world.watch_writes(address, tensor.nbytes)
            if tensor.is_output or tensor.is_updated:
                self._world.watch_host_writes(address, tensor.nbytes)

    def _check_outputs(self, rank: int, call: CallMemory) -> None:
        """Looks for bytes of a call's outputs that host code has written, past the emulated GPU."""
        for tensor in call.tensors[rank]:
            if tensor.is_output or tensor.is_updated:
                handed_over = self._shared.segment(rank) + tensor.offset
                address = self._segments[rank] + tensor.offset
                self._world.watch_host_writes(address, tensor.nbytes, is_on=False)
                self._check_written(rank, f"output {tensor.name}", address, tensor.nbytes, handed_over)

    def _check_written(self, rank: int, name: str, address: int, nbytes: int, before: int | None = None) -> None:
        place = self._world.first_foreign(address, nbytes, before)
        if place is not None and self._foreign is None:
            text = f"{name} of rank {rank}, byte {place}: no kernel, copy or fill of an emulated GPU has written it"
            self._foreign = Fault("integrity", rank, text)

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _with_findings(self, done: RanksDone) -> RanksDone:
        found = self._world.findings()
        worst_first = sorted(found.findings, key=lambda each: CLASSES.index(each.finding_class))
        findings = tuple(map(_finding, worst_first[:MAX_FINDINGS]))
        advice = tuple(line[:MAX_TEXT] for line in found.advice[:MAX_FINDINGS])
        links = tuple(PeerBytes(link.rank, link.owner, link.read_bytes, link.written_bytes) for link in found.links)
        return RanksDone(done.claims, done.fault, done.instructions, findings, advice, links)


def _fault(ended: Ended) -> Fault:
    if ended.outcome == Outcome.BODY_FAILED and ended.errors:
        rank, error = next(iter(ended.errors.items()))
        return Fault(kind_of(error), rank, _error_text(error))
    return Fault(FAULTS.get(ended.outcome, "runtime_error"), ended.rank, ended.message[:MAX_TEXT])


CLASSES = (None, "unsynchronised", "weak_order", "benign")
"""Classes of findings, the worst first; None stands for errors that are no races."""


def _finding(found: Finding) -> DetectorFinding:
    return DetectorFinding(
        kind=found.kind,
        rank=found.rank,
        owner=found.owner,
        tensor=found.tensor,
        text=found.message[:MAX_TEXT],
        finding_class=cast("FindingClass | None", found.finding_class),
        first=_line_of(found.first),
        second=_line_of(found.second),
        exposure=found.exposure,
    )


def _line_of(access: Access | None) -> str | None:
    if access is None or access.file is None:
        return None
    return f"{os.path.basename(access.file)}:{access.line}"[:MAX_TEXT]


def _error_text(error: BaseException) -> str:
    text = str(error) if isinstance(error, CandidateError) else trace_of(error)
    return text[-MAX_TEXT:]
