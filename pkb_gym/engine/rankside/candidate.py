"""The rank program of a candidate's gang: loads the kernel, calls it in blocks, reports their end; see `orders`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from typing import Protocol

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import CallSpec, unroll
from pkb_gym.engine.wire.claims import write_claims
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import (
    Armed,
    Bind,
    BlockDone,
    Bound,
    Claims,
    Failed,
    Go,
    HeapMapped,
    Load,
    Loaded,
    MapHeap,
    NullDone,
    Partition,
    Prepare,
    Prepared,
    ProfileBlock,
    ProfileDone,
    RunBlock,
    RunNullBlock,
)

from .crash import trace_native_code, trace_python_code
from .devices import AnyHeap, Device, make_device
from .failures import CandidateError, kind_of, trace_of
from .handover import Handover, Handovers, NullCall, make_handovers, run_null_calls
from .launcher import launcher_variables

BLOCKS_OF_LASTING = 2
"""Number of first blocks before which what there is is taken to last."""


class Solution(Protocol):
    """A loaded candidate, and the argument sets that it is called on."""

    def bind(self, calls: list[CallSpec], partitions: tuple[Partition, ...]) -> None:
        """Makes the arguments of every call."""

    def call(self, index: int, epoch: int, hold_ns: int = 0) -> Claims:
        """Calls it on one set; returns a claim for each tensor that was copied into the heap.

        Args:
            index: Index of the set.
            epoch: Epoch of the call.
            hold_ns: Nanoseconds that the rank stands still after each wait and barrier of the call.
        """

    def profile(self, indices: tuple[int, ...], epoch: int, link_bytes_per_s: float | None) -> ProfileDone:
        """Calls it on several sets and reports where the time went.

        On GPUs, by `cuda_profile.profile_calls`.
        """


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    order: WireMessage
    order, _, fds = wire.receive_with_fds(Prepare, MapHeap)
    assert isinstance(order, Prepare | MapHeap)
    setting = order.setting
    if order.dialect == "python":
        os.environ |= launcher_variables(rank, world_size)
    device = make_device(setting.device, rank, world_size, setting.threads, setting.ranks_per_gpu)
    if isinstance(order, Prepare):
        device.prepare(order.dialect, one_queue=order.one_queue, all_gpus=order.all_gpus)
    else:
        device.prepare(order.dialect)
    if isinstance(order, Prepare):
        if order.dialect == "python":
            device.join()
        for name in order.imports:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        wire.send(Prepared())
        order, _, fds = wire.receive_with_fds(MapHeap)
    assert isinstance(order, MapHeap)
    heap = device.heap(fds[: order.heap_fds], order.segment_bytes)
    handovers, null_call = make_handovers(device, heap, world_size, fds[order.heap_fds :])
    wire.send(HeapMapped())
    order, _, fds = wire.receive_with_fds(RunNullBlock, Load)
    while isinstance(order, RunNullBlock):
        _run_null_block(wire, device, handovers.of(order.handovers, order.pad_ns), null_call, order.calls)
        order, _, fds = wire.receive_with_fds(RunNullBlock, Load)
    assert isinstance(order, Load)
    device.limit_memory(order.memory_bytes)
    place = heap.place(rank)
    place.state = abi.State.LOADING
    try:
        solution = _load(order, fds, heap, device, rank, world_size)
    except BaseException as error:  # whatever a candidate's module raises, SystemExit included, is data
        wire.send(_failed(error))
        return
    wire.send(Loaded())
    blocks = 0
    while True:
        order, _ = wire.receive(Bind, RunBlock, ProfileBlock)
        if isinstance(order, Bind):
            solution.bind(unroll(order.runs), order.partitions)
            wire.send(Bound())
        elif isinstance(order, RunBlock | ProfileBlock):
            _collect_garbage(lasting=blocks < BLOCKS_OF_LASTING)
            blocks += 1
            if not _run_block(wire, solution, device, handovers, place, order):
                return


def _collect_garbage(*, lasting: bool) -> None:
    """Leaves nothing to collect within a block.

    Args:
        lasting: Whether later collections pass over what there is now: what the candidate has imported, and what its
            first calls have. Of torch's compiler, a collection takes a tenth of a second.
    """
    gc.collect()
    if lasting:
        gc.freeze()


def _run_null_block(wire: Wire, device: Device, handover: Handover, null_call: NullCall, calls: int) -> None:
    wire.send(Armed())
    wire.receive(Go)
    run_null_calls(calls, null_call, handover)
    device.synchronize()
    wire.send(NullDone())


def _run_block(
    wire: Wire,
    solution: Solution,
    device: Device,
    handovers: Handovers,
    place: abi.Place,
    order: RunBlock | ProfileBlock,
) -> bool:
    """Runs one block; False after an error, since nothing can be trusted then."""
    gc.disable()
    place.state = abi.State.AT_GATE
    place.call = 0
    wire.send(Armed())
    wire.receive(Go)
    call = 0
    done: BlockDone | ProfileDone
    try:
        place.state = abi.State.IN_CALL
        if isinstance(order, ProfileBlock):
            done = solution.profile(order.sets, order.epoch, order.link_bytes_per_s)
        else:
            handover = handovers.of(order.handovers, order.pad_ns)
            congestion = handovers.congestion
            holds_ns = order.holds_ns or (0,) * len(order.sets)
            congestions_ns = order.congestions_ns or (0,) * len(order.sets)
            claims = []
            for call, index in enumerate(order.sets):  # read by the handler below
                handover.cross()
                place.call = call
                congestion.begin(congestions_ns[call])
                claims.append(solution.call(index, order.epoch + call, holds_ns[call]))
                congestion.end()
            handover.cross()
            device.synchronize()
            done = BlockDone(write_claims(claims))
        place.state = abi.State.DONE
    except BaseException as error:  # SystemExit and KeyboardInterrupt included: a candidate raised it
        wire.send(_failed(error, call))
        return False
    finally:
        gc.enable()
    wire.send(done)
    return True


def _load(order: Load, fds: list[int], heap: AnyHeap, device: Device, rank: int, world_size: int) -> Solution:
    if order.dialect == "native":
        from .native import Native, library_path
        from .started_libraries import start

        native = Native(order, fds[0], heap, device, rank, world_size)
        if device.name == "cuda":
            start(library_path(rank), rank, world_size)
        if order.stack_trace is not None:
            native.trace_thrown = trace_native_code(f"/proc/self/fd/{fds[order.stack_trace]}", library_path(rank))
        return native
    from .gsan import WatchedPython
    from .python import Python

    trace_python_code()
    libraries = {name: f"/proc/self/fd/{fds[place]}" for name, place in order.extensions.items()}
    module = Python if order.gsan_seed is None else WatchedPython
    return module(order, fds[0], libraries, heap, device, rank)


def _failed(error: BaseException, call: int = 0) -> Failed:
    """The reply to an error: the message of an error of ours about a candidate, the traceback of any other."""
    text = (str(error).rstrip() if isinstance(error, CandidateError) else trace_of(error))[-8000:]
    return Failed(kind_of(error), f"call {call}: {text}" if call else text)
