"""Blocks of the baseline, and of calls of nothing, as a reference rank runs them under the evaluator's clock."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.engine.problem import ITEMSIZE
from pkb_gym.engine.rankside.devices import AnyHeap, Device
from pkb_gym.engine.rankside.handover import (
    EnqueuedHandover,
    Handover,
    Meeting,
    NoHandover,
    NoWork,
    NullCall,
    WaitingHandover,
    run_null_calls,
)
from pkb_gym.engine.rankside.results import Delivery
from pkb_gym.engine.reference import graphs
from pkb_gym.engine.reference.block_conditioner import BlockConditioner
from pkb_gym.engine.reference.bound_block import BoundBlock, ResultsByName
from pkb_gym.engine.reference.handover_script import Script, null_script, put_lines
from pkb_gym.engine.reference.handover_server import HandoverLibrary, HandoverServer
from pkb_gym.engine.reference.orders import (
    BlockFinished,
    BlockSettled,
    Captured,
    CaptureGraphs,
    ReplayGraphs,
    RunBaseline,
)
from pkb_gym.engine.reference.registered_memory import RegisteredMemory, can_register, copies_of
from pkb_gym.engine.wire.arguments import Result
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.orders import Armed, Go, RunNullBlock


class OwnHandovers:
    """The handovers between the baseline's calls, both of whose sides are in this process.

    Args:
        device: Device of this rank.
        library: The compiled server.
        rank_library: Path of the compiled rank's side; None on the CPU.

    Attributes:
        null_call: Call without work, by which the cost of handovers is measured.
    """

    def __init__(self, device: Device, library: HandoverLibrary, rank_library: str | None) -> None:
        self._device, self._library = device, library
        self._rank_library = None if rank_library is None else ctypes.CDLL(rank_library)
        self._fds = (os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC))
        self._enqueued: EnqueuedHandover | None = None
        self.null_call: NullCall = NoWork()

    def map(self, heap: AnyHeap, world_size: int) -> None:
        """Takes the heap whose lines are handed over from now on."""
        if self._rank_library is not None:
            stream, segment = self._device.stream or 0, heap.segment(heap.rank)
            self._enqueued = EnqueuedHandover(self._rank_library, stream, heap.mailbox, segment)
            self.null_call = Meeting(self._rank_library, stream, heap, world_size)

    def between_calls(self, pad_ns: int) -> Handover:
        """The handovers of a block; see `EnqueuedHandover` for the padding."""
        if self._enqueued is None:
            return WaitingHandover(self._device, *self._fds)
        self._enqueued.pad_ns = pad_ns
        return self._enqueued

    def serve(self, script: Script, heap: AnyHeap, processor: int) -> HandoverServer:
        """Begins to serve a block.

        Args:
            script: Script of the block's handovers.
            heap: The mapped one.
            processor: Processor that the server spins on, on GPUs.
        """
        if self._enqueued is None:
            return self._library.serve_on_cpu(script, heap.segment(heap.rank), *self._fds)
        return self._library.serve_on_gpu(script, heap.mailbox, self._enqueued.sequence + 1, processor)


class BaselineBlocks:
    """Runs blocks on one rank.

    Args:
        wire: Connection to the evaluator.
        device: Device of this rank, with its process group.
        handovers: Handovers between the calls of a block.
        conditioner: Brings the device into the same state before each block.
    """

    def __init__(self, wire: Wire, device: Device, handovers: OwnHandovers, conditioner: BlockConditioner) -> None:
        self._wire, self._device, self._handovers = wire, device, handovers
        self._conditioner = conditioner
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._registered: RegisteredMemory | None = None
        self._copies: list[list[Any]] = []

    def run(self, block: BoundBlock, order: RunBaseline) -> tuple[BlockSettled, list[ResultsByName]]:
        """Runs the baseline on the first calls of a block.

        What a candidate of this dialect has to deliver into its heap, the baseline delivers into the reference heap
        inside the clock, so that both sides pay alike; other results are kept as they were returned.

        Returns:
            The answer to the order, and the results of each call.
        """
        results = [call.results for call in block.calls[: order.calls]]
        deliveries = [block.delivery(index, order.dialect) for index in range(order.calls)]
        for planned in block.plan.sets[: order.calls]:
            block.heap.populate(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
            self._conditioner.bring_into_cache(block.heap.bytes()[planned.offset : planned.outputs_offset])
        self._conditioner.reserve([size for of_call in results for size in _sizes(of_call)])
        kept: list[list[list[torch.Tensor]]] = []

        def call(index: int) -> None:
            kept.append(deliveries[index].deliver(block.call(index))[0])

        if order.handovers:
            script = block.script
            put_lines(block.heap, script.arrivals.lines, script.decoys)
            settled = self._run_served(script, block.heap, order.calls, order.pad_ns, call)
            put_lines(block.heap, script.arrivals.lines, script.values)
        else:
            settled = self._run_gated(lambda: _each(order.calls, call))
        return settled, [block.results_by_name(index, parts) for index, parts in enumerate(kept)]

    def run_null_block(self, block: BoundBlock, order: RunNullBlock) -> BlockSettled:
        """Runs null calls, with handovers as between the calls of a block."""
        null_call = self._handovers.null_call
        if order.handovers == "none":
            return self._run_gated(lambda: run_null_calls(order.calls, null_call, NoHandover()))
        script = null_script(block.plan.sets[0], order.calls)
        return self._run_served(script, block.heap, order.calls, order.pad_ns, lambda _: null_call.call())

    def capture(self, block: BoundBlock, order: CaptureGraphs) -> Captured:
        """Captures the baseline's calls on the first sets, on all ranks or on none.

        Results are delivered as in `run`, so that both baselines of a candidate do the same work.
        """
        deliveries = [block.delivery(index, order.dialect) for index in range(order.calls)]
        if order.registered:
            return self._capture_registered(block, deliveries)
        waits = graphs.host_wait(lambda: block.call(0)) is not None
        anywhere = torch.tensor(waits, dtype=torch.int32, device=self._device.torch_device)
        dist.all_reduce(anywhere)  # the ranks must go on alike: what is captured is run once before
        if anywhere.item():
            return Captured(captured=False, sound=True)
        self._graphs, obstacle = graphs.capture(lambda index: deliveries[index].deliver(block.call(index)), order.calls)
        return Captured(captured=obstacle is None, sound=obstacle is None or graphs.context_is_sound())

    def _capture_registered(self, block: BoundBlock, deliveries: Sequence[Delivery]) -> Captured:
        """Captures calls that have been captured before, with copies of their arguments in registered memory."""
        self.forget()
        if not can_register():
            return Captured(captured=False, sound=True)
        self._device.release()
        calls, failure = len(deliveries), None
        self._registered = RegisteredMemory(torch.device(self._device.torch_device))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # unannotated
        with torch.cuda.stream(stream):
            block.call(0)  # libraries make workspaces for the stream, which outlive the pool
            torch.cuda.synchronize()
            try:
                with self._registered.allocating():
                    self._copies = copies_of(block.arguments[:calls], torch.clone)
                    # All results at once, so that captures need no memory that ranks would have to register meanwhile.
                    results = [block.solution(*arguments) for arguments in self._copies]
                torch.cuda.synchronize()
                del results
            except RuntimeError as error:  # no memory
                failure = error
        if not self._registered.is_laid_out_alike(failure) or not self._registered.register():
            self.forget()
            return Captured(captured=False, sound=graphs.context_is_sound())

        def call(index: int) -> None:
            deliveries[index].deliver(block.solution(*self._copies[index]))

        self._graphs, obstacle = graphs.capture(call, calls, stream, self._registered.handle)
        return Captured(captured=obstacle is None, sound=obstacle is None or graphs.context_is_sound())

    def replay(self, order: ReplayGraphs) -> BlockSettled:
        """Launches the captured graphs, one after the other."""

        def block() -> None:
            for call in range(order.calls):
                self._graphs[call % len(self._graphs)].replay()

        return self._run_gated(block)

    def forget(self) -> None:
        """Lets go of captured graphs, and of the memory that was registered for them."""
        self._graphs, self._copies = [], []
        if self._registered is not None:
            self._registered.close()
            self._registered = None

    def _run_served(
        self, script: Script, heap: AnyHeap, calls: int, pad_ns: int, call: Callable[[int], None]
    ) -> BlockSettled:
        handover = self._handovers.between_calls(pad_ns)
        with contextlib.ExitStack() as served:

            def serve() -> None:
                server = self._handovers.serve(script, heap, self._conditioner.server_processor)
                served.callback(server.finish)

            def block() -> None:
                for index in range(calls):
                    handover.cross()
                    call(index)
                handover.cross()

            return self._run_gated(block, serve)

    def _run_gated(self, block: Callable[[], None], arm: Callable[[], None] | None = None) -> BlockSettled:
        """Does some work between the evaluator's go and this rank's report that it is finished.

        Args:
            block: The work.
            arm: Function called just before the rank reports that it is ready.
        """
        gc.disable()  # what is garbage by now is collected after the block
        dist.barrier()
        idle_us = self._conditioner.answer_us()
        self._conditioner.flush_cache()
        self._device.synchronize()
        self._conditioner.choose_processors()
        if arm is not None:
            arm()
        self._wire.send(Armed())
        self._wire.receive(Go)
        began_ns = time.perf_counter_ns()
        block()
        host_ns = time.perf_counter_ns() - began_ns
        self._device.synchronize()
        self._wire.send(BlockFinished())
        gc.enable()
        return BlockSettled(idle_us, host_ns)


def _each(calls: int, call: Callable[[int], None]) -> None:
    for index in range(calls):
        call(index)


def _sizes(results: Sequence[Result]) -> Iterator[int]:
    """Bytes of every tensor that a call returns."""
    for result in results:
        for slot in result.slots:
            yield slot.capacity * ITEMSIZE[slot.dtype]
