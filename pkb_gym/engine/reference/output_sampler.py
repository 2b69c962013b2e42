"""Samples of a candidate's outputs on a GPU, taken by the trusted side whenever the GPU asks for the next handover.

The kernels that ask for handovers (`rankside/handover.cu`) run in the candidate's process, which could ask before its
call has ended: the wait for the trusted side would overlap with work that is still to be done, and the answer names the
lines that become receipts. So a thread of the reference rank watches the request word of the mailbox. When it has come
to the handover after a call, a copy engine of the reference rank copies parts of the call's outputs to main memory. The
candidate knows neither the calls nor the parts. Whatever differs from these outputs at the end of the block was written
after the request.

**Why an honest kernel has no late part.** The request is a store with release at system scope
(`st.release.sys`) by a kernel that the rank's stream runs after all work of the call. All writes of the call happen
before it: those of earlier kernels and copies by the stream's order; those of other streams because the call's stream
has waited for them; those of peers, over NVLink or on the same GPU, because the call contract lets them write only
before the call ends, so that the rank has acquired them. Release is cumulative, so they happen before the thread's
load with acquire, which sees the request, and this precedes the launch of the copy (PTX ISA, "Memory Consistency
Model"). The copy reads the memory of its own GPU through the cache in which those writes were performed. Afterwards no
output changes: arguments and outputs of a call belong to no other call, and in a sampled block neither later handovers
nor the trusted side write to outputs of earlier calls. A copy that comes late shows less, and is never false evidence.

**What is seen.** A copy begins some microseconds after the request, so that a request which precedes the last write by
less is not seen by itself. In disturbed blocks kernels of the reference rank interrupt the candidate's at any
instruction while the copy engine goes on; each interruption between request and last write is seen. A request after
the last write of its rank's outputs, but before the end of the call, is not seen: it can save the exit synchronisation
and a launch.

**Times.** Every request of a disturbed block is sampled, which decides no time. Other blocks have a few sampled calls,
so that a candidate cannot recognise unobserved blocks; between them the thread sleeps. It runs on a processor that
neither the candidate's rank nor the handovers' server uses, where there are enough, and its copies use copy
engines, not the processors of the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.compare.layout import BlockPlan, placed_results
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.reference.orders import LateOutput
from pkb_gym.engine.support.processors import on_processors

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.devices import AnyHeap

MAX_CALLS, FEW_CALLS = 256, 3
"""Calls that are sampled of a disturbed block, and of any other."""

MAX_OUTPUTS = 4
"""Outputs of one call that a part is copied of."""

CALL_BYTES = 32 << 10
"""Copied of one call; a copy engine takes about a microsecond for it."""


@dataclass(frozen=True)
class OutputParts:
    """The parts of outputs that are copied in a block, in the order of their calls.

    Attributes:
        calls: [parts]: call that each belongs to.
        offsets: [parts]: where it lies in the segment, in bytes.
        nbytes: [parts]: its size.
        outputs: [parts]: name of the output.
    """

    calls: NDArray[np.int64]
    offsets: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    outputs: Sequence[str]


def draw_parts(problem: Problem, plan: BlockPlan, rank: int, seed: int, *, is_disturbed: bool) -> OutputParts:
    """Draws calls of a block, and parts of their outputs: some of the outputs, of each as much as there is room for.

    Args:
        problem: Declaration of the problem.
        plan: Places of the block's tensors in the heap.
        rank: Number of the rank whose outputs are sampled.
        seed: Seed of the draws, which no candidate knows.
        is_disturbed: Whether the block decides no time.
    """
    rng = np.random.default_rng([seed, 1])
    most = min(MAX_CALLS if is_disturbed else FEW_CALLS, len(plan.sets))
    calls: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    names: list[str] = []
    for call in sorted(rng.choice(len(plan.sets), most, replace=False).tolist()):
        leaves = [leaf for _, leaf in placed_results(problem, plan.sets[call], rank) if leaf.leaf.capacity_bytes]
        drawn = rng.permutation(len(leaves))[:MAX_OUTPUTS]
        for leaf in (leaves[index] for index in drawn):
            whole = leaf.leaf.capacity_bytes
            nbytes = min(whole, CALL_BYTES // len(drawn))
            middle = int(rng.integers(whole))  # so that the ends are met as often as the rest
            calls.append(call)
            offsets.append(leaf.offset + min(max(0, middle - nbytes // 2), whole - nbytes))
            sizes.append(nbytes)
            names.append(leaf.leaf.name)
    return OutputParts(
        np.array(calls, np.int64), np.array(offsets, np.uint64), np.array(sizes, np.uint64), tuple(names)
    )


class _Parts(ctypes.Structure):
    """`Parts` of output_sampler.cpp."""

    _fields_ = [
        ("count", ctypes.c_int32),
        ("requests", ctypes.c_void_p),
        ("from", ctypes.c_void_p),
        ("nbytes", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
    ]


class EngineFunctions(ctypes.Structure):
    """`Engine` of output_sampler.cpp: addresses of the functions of a copy engine, and what they are called with."""

    _fields_ = [
        ("enter", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("settle", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


class CopyEngine(Protocol):
    """Copies memory of a device to main memory, from a thread that does nothing else.

    Attributes:
        functions: Addresses of the functions that the compiled sampler calls.
        memory: Destination of the copies, of `MAX_CALLS * CALL_BYTES` bytes.
    """

    functions: EngineFunctions
    memory: NDArray[np.uint8]


class GpuCopyEngine:
    """The copy engine of the current GPU, in a stream of its own; see `CopyEngine`.

    The driver is called directly, since the thread that calls it has no interpreter.
    """

    def __init__(self) -> None:
        import torch

        driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        status = driver.cuCtxGetCurrent(ctypes.byref(context))
        if status or context.value is None:
            raise RuntimeError(f"outputs cannot be sampled: no CUDA context is current (error {status})")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # unannotated
        self._pinned = torch.empty(MAX_CALLS * CALL_BYTES, dtype=torch.uint8, pin_memory=True)
        self.memory: NDArray[np.uint8] = self._pinned.numpy()
        functions = (driver.cuCtxSetCurrent, driver.cuMemcpyDtoHAsync_v2, driver.cuStreamSynchronize)
        addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
        self.functions = EngineFunctions(*addresses, context, self._stream.cuda_stream)


class OutputSampler:
    """The compiled sampler.

    Args:
        path: Path of the shared library.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.pkb_sample_outputs.restype = ctypes.c_void_p
        self._library.pkb_sample_outputs.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._library.pkb_finish_sampling.argtypes = [ctypes.c_void_p]

    def start(
        self,
        parts: OutputParts,
        engine: CopyEngine,
        heap: AnyHeap,
        first_sequence: int,
        processors: Sequence[int] = (),
    ) -> OutputSamples:
        """Begins to sample a block.

        Args:
            parts: Parts to copy.
            engine: Engine that copies.
            heap: Heap of the candidate.
            first_sequence: Number of the block's first handover.
            processors: Processors that the thread may use; by default those of the calling thread.
        """
        return OutputSamples(self._library, parts, engine, heap, first_sequence, processors)


class OutputSamples:
    """The samples of one block; see `OutputSampler.start`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        parts: OutputParts,
        engine: CopyEngine,
        heap: AnyHeap,
        first_sequence: int,
        processors: Sequence[int],
    ) -> None:
        self._library, self._parts, self._engine, self._heap = library, parts, engine, heap
        self._ends = np.cumsum(parts.nbytes, dtype=np.int64)
        self._taken: NDArray[np.uint8] = np.zeros(len(parts.calls), np.uint8)
        begins = self._ends.astype(np.uint64) - parts.nbytes
        self._arrays = [
            (parts.calls + first_sequence + 1).astype(np.uint64),  # the handover after the call
            parts.offsets + np.uint64(heap.segment(heap.rank)),
            np.ascontiguousarray(parts.nbytes),
            begins + np.uint64(engine.memory.ctypes.data),
            self._taken,
        ]
        raw = _Parts(len(parts.calls), *(array.ctypes.data for array in self._arrays))
        with on_processors(processors):  # a thread begins on those of its maker
            self._handle = library.pkb_sample_outputs(
                ctypes.byref(raw), ctypes.byref(engine.functions), ctypes.c_void_p(heap.mailbox)
            )

    def finish(self) -> tuple[LateOutput, ...]:
        """Ends the thread; the outputs must be final.

        Returns:
            Outputs that were not final when the handover after their call was asked for.

        Raises:
            RuntimeError: the copy engine failed.
        """
        status = self._library.pkb_finish_sampling(self._handle)
        if status:
            raise RuntimeError(f"outputs could not be sampled: CUDA error {status}")
        segment, parts = self._heap.bytes(), self._parts
        late = set()
        taken: list[int] = np.flatnonzero(self._taken).tolist()
        for part in taken:
            offset, nbytes, end = int(parts.offsets[part]), int(parts.nbytes[part]), int(self._ends[part])
            # One by one: a candidate may have left no memory on the GPU to put them together in.
            final = segment[offset : offset + nbytes].cpu().numpy()
            if not np.array_equal(self._engine.memory[end - nbytes : end], final):
                late.add(LateOutput(int(parts.calls[part]), parts.outputs[part]))
        return tuple(sorted(late, key=lambda one: (one.call, one.output)))
