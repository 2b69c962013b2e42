"""A candidate's block as a reference rank stages it: inputs in its heap, outputs poisoned, handovers served."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pkb_gym.engine.compare.layout import BlockPlan, SetPlan, placed_results
from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.compare.stacked import heap_rows, row_index
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.gpu_pulses import GpuPulses
from pkb_gym.engine.reference.handover_script import LINE_BYTES, Script, lines_of, put_lines
from pkb_gym.engine.reference.handover_server import HandoverLibrary, HandoverServer
from pkb_gym.engine.reference.interruptions import Interruptions
from pkb_gym.engine.reference.orders import BlockEnded, LateOutput
from pkb_gym.engine.reference.output_sampler import (
    CopyEngine,
    GpuCopyEngine,
    OutputParts,
    OutputSampler,
    OutputSamples,
    draw_parts,
)
from pkb_gym.engine.reference.preemption import StoppedProcess
from pkb_gym.engine.support.pidfds import pid_of

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.devices import AnyHeap

SMALL_SET_BYTES = 1 << 20
"""Sets of no more are copied all at once."""


class CandidateBlock(Protocol):
    """A staged block."""

    def end(self) -> BlockEnded:
        """The report of its handovers; the candidate's gang must be frozen."""


def stage_inputs(plan: BlockPlan, mine: AnyHeap, theirs: AnyHeap) -> None:
    """Copies a rank's inputs into the candidate's heap, and poisons its outputs."""
    source, target = mine.bytes(), theirs.bytes()
    for run in plan.runs:
        if run[0].nbytes <= SMALL_SET_BYTES:
            _stage_together(run, mine, theirs)
        else:
            for planned in run:
                begin, middle, end = planned.offset, planned.outputs_offset, planned.offset + planned.nbytes
                target[begin:middle].copy_(source[begin:middle])
                target[middle:end].fill_(POISON)


def _stage_together(run: Sequence[SetPlan], mine: AnyHeap, theirs: AnyHeap) -> None:
    first = run[0]
    distances = [planned.offset - first.offset for planned in run]
    arguments = row_index(mine, first.offset, first.outputs_offset - first.offset, distances)
    outputs = row_index(mine, first.outputs_offset, first.offset + first.nbytes - first.outputs_offset, distances)
    heap_rows(theirs).index_copy_(0, arguments, heap_rows(mine).index_select(0, arguments))
    heap_rows(theirs).index_fill_(0, outputs, POISON)


class PlainBlock:
    """Everything is in place before the block begins."""

    def end(self) -> BlockEnded:
        """Reports a block without handovers as complete."""
        return BlockEnded(complete=True, late=())


@dataclass(frozen=True)
class Sampling:
    """The sampling of a block's outputs, on GPUs; see `output_sampler`.

    Attributes:
        sampler: Compiled sampler.
        engine: Engine that copies.
        parts: Parts of the outputs that are sampled.
    """

    sampler: OutputSampler
    engine: CopyEngine
    parts: OutputParts


class CandidateHandovers:
    """The trusted side of the handovers between a candidate's calls.

    Args:
        library: The compiled server.
        sampler: Path of the compiled sampler of outputs, on GPUs.

    Attributes:
        fds: The eventfds that the candidate's rank writes to, and reads; none before it is known.
    """

    def __init__(self, library: HandoverLibrary, sampler: str | None = None) -> None:
        self._library = library
        self._sampler = None if sampler is None else OutputSampler(sampler)
        # At once: a candidate may leave no memory for it.
        self._copy_engine = None if sampler is None else GpuCopyEngine()
        self._served = 0
        self.fds: tuple[int, ...] = ()
        self._pidfds: tuple[int, ...] = ()

    @property
    def next_sequence(self) -> int:
        """Number of the next handover."""
        return self._served + 1

    def take(self, fds: Sequence[int]) -> None:
        """Takes the eventfds of the next candidate's rank, and its pidfd where it has a process of its own."""
        self.close()
        self.fds, self._pidfds = tuple(fds[:2]), tuple(fds[2:])

    @property
    def interruptions(self) -> Interruptions | None:
        """Interruptions of the candidate's rank; None where it has no process of its own."""
        return Interruptions(self._library.interrupt, self._pidfds[0]) if self._pidfds else None

    @property
    def stopped_process(self) -> StoppedProcess | None:
        """Preemption of the candidate's rank on the CPU; None where it has no process of its own."""
        return StoppedProcess(self._pidfds[0]) if self._pidfds else None

    def serve(self, script: Script, heap: AnyHeap, processor: int) -> HandoverServer:
        """Begins to serve a block.

        Args:
            script: Script of the block's handovers.
            heap: Heap of the candidate.
            processor: Processor that the server spins on, on GPUs.
        """
        first = self.next_sequence
        self._served += script.calls + 1
        if heap.cuda_device is not None:
            return self._library.serve_on_gpu(script, heap.mailbox, first, processor)
        process = next((pid_of(pidfd) for pidfd in self._pidfds), None)
        request_fd, reply_fd = self.fds
        return self._library.serve_on_cpu(script, heap.segment(heap.rank), request_fd, reply_fd, process or 0)

    def sampling(self, block: BoundBlock, *, is_disturbed: bool) -> Sampling | None:
        """The sampling of a block; None on the CPU, where handovers are made by the trusted side itself.

        Args:
            block: Block whose outputs are sampled.
            is_disturbed: Whether it decides no time.
        """
        if self._sampler is None or self._copy_engine is None:
            return None
        parts = draw_parts(block.problem, block.plan, block.rank, block.seed, is_disturbed=is_disturbed)
        return Sampling(self._sampler, self._copy_engine, parts)

    def close(self) -> None:
        """Lets go of the candidate."""
        for fd in (*self.fds, *self._pidfds):
            os.close(fd)
        self.fds = self._pidfds = ()
        self._served = 0


class ServedBlock:
    """Lines are handed over call by call, by a thread.

    Args:
        block: Block whose inputs have been copied into the candidate's heap.
        script: Script of the lines that are handed over.
        theirs: The candidate's heap.
        pulses: Kernels that disturb the GPU meanwhile; None for none.
        sampling: Sampling of its outputs; None if they are not sampled.
    """

    def __init__(
        self,
        block: BoundBlock,
        script: Script,
        theirs: AnyHeap,
        pulses: GpuPulses | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self._block, self._script, self._theirs, self._pulses = block, script, theirs, pulses
        self._sampling = sampling
        put_lines(theirs, script.arrivals.lines, script.decoys)
        self._server: HandoverServer | None = None
        self._samples: OutputSamples | None = None

    def serve(self, handovers: CandidateHandovers, processor: int, others: Sequence[int] = ()) -> None:
        """Begins to hand over; nothing else may be staged afterwards.

        Args:
            handovers: Handovers of the candidate.
            processor: Processor that the server spins on, on GPUs.
            others: Processors for the sampling; see `OutputSampler.start`.
        """
        first = handovers.next_sequence
        if self._sampling is not None:
            sampling = self._sampling
            self._samples = sampling.sampler.start(sampling.parts, sampling.engine, self._theirs, first, others)
        self._server = handovers.serve(self._script, self._theirs, processor)
        if self._pulses is not None:
            self._pulses.start()

    def end(self) -> BlockEnded:
        """Ends the handovers; lines that were taken away are put back, to be compared as all others."""
        if self._pulses is not None:
            self._pulses.stop()
        assert self._server is not None
        receipts = self._server.finish()
        early = () if self._samples is None else self._samples.finish()
        script = self._script
        put_lines(self._theirs, *script.withdrawn())
        if receipts is None:
            return BlockEnded(complete=False, late=())
        left = POISON if script.takes_outputs else receipts
        changed = (lines_of(self._theirs, script.receipts.lines) != left).any(axis=1)
        if script.takes_outputs:
            put_lines(self._theirs, script.receipts.lines, receipts)
        late = {
            LateOutput(call, self._output_at(call, int(script.receipts.lines[line])))
            for call in range(script.calls)
            for line in range(script.receipts.begin[call], script.receipts.begin[call + 1])
            if changed[line]
        }
        return BlockEnded(complete=True, late=tuple(sorted(late, key=lambda one: (one.call, one.output))), early=early)

    def _output_at(self, call: int, line: int) -> str:
        """Name of the output that a line belongs to."""
        offset = line * LINE_BYTES
        for _, leaf in placed_results(self._block.problem, self._block.plan.sets[call], self._block.rank):
            if leaf.offset <= offset < leaf.offset + max(1, leaf.leaf.capacity_bytes):
                return leaf.leaf.name
        raise AssertionError(f"no output at {offset}")
