"""The candidate's side of a block, as a reference rank stages it: inputs in its heap, outputs poisoned, handovers served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pkb_gym.engine.compare.layout import BlockPlan, SetPlan, placed_results
from pkb_gym.engine.compare.stacked import byte_slot, heap_rows, row_index
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.ranks.handover_script import LINE_BYTES, POISON, Script, lines_of, put_lines
from pkb_gym.engine.ranks.handover_server import HandoverServer
from pkb_gym.engine.ranks.reference_orders import BlockEnded, LateOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from pkb_gym.engine.rankside.devices import AnyHeap

SMALL_SET_BYTES = 1 << 20
"""Sets of no more are copied all at once."""


class CandidateBlock(Protocol):
    """A staged block."""

    def end(self) -> BlockEnded:
        """What its handovers have shown; the candidate's gang must be frozen."""


def stage_inputs(plan: BlockPlan, mine: AnyHeap, theirs: AnyHeap) -> None:
    """Copies a rank's inputs into the candidate's heap, and poisons its outputs."""
    for run in plan.runs:
        if run[0].nbytes <= SMALL_SET_BYTES:
            _stage_together(run, mine, theirs)
        else:
            for planned in run:
                arguments = byte_slot(planned.offset, planned.outputs_offset - planned.offset)
                outputs = byte_slot(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
                theirs.tensor(arguments).copy_(mine.tensor(arguments))
                theirs.tensor(outputs).fill_(POISON)


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
        """See `CandidateBlock`: nothing."""
        return BlockEnded(complete=True, late=())


class ServedBlock:
    """Lines are handed over call by call by a thread.

    Args:
        problem: its declaration.
        plan: where its tensors lie.
        rank: of the candidate, and of this process.
        script: which lines.
        mine: holds the inputs as they were made.
        theirs: the candidate's heap, where they have been copied.
        serve: starts the server.
    """

    def __init__(
        self,
        problem: Problem,
        plan: BlockPlan,
        rank: int,
        script: Script,
        mine: AnyHeap,
        theirs: AnyHeap,
        serve: Callable[[Script], HandoverServer],
    ) -> None:
        self._problem, self._plan, self._rank = problem, plan, rank
        self._script, self._mine, self._theirs = script, mine, theirs
        put_lines(theirs, script.arrivals.lines, script.decoys)
        self._server = serve(script)

    def end(self) -> BlockEnded:
        """See `CandidateBlock`; withheld lines of immutable arguments are put back, to be compared as all others."""
        receipts = self._server.finish()
        script = self._script
        for call, count in enumerate(script.withdrawals):
            begin = script.arrivals.begin[call]
            lines = slice(begin, begin + count)
            put_lines(self._theirs, script.arrivals.lines[lines], script.values[lines])
        if receipts is None:
            return BlockEnded(complete=False, late=())
        changed = (lines_of(self._theirs, script.receipts.lines) != receipts).any(axis=1)
        late = {
            LateOutput(call, self._output_at(call, int(script.receipts.lines[line])))
            for call in range(script.calls)
            for line in range(script.receipts.begin[call], script.receipts.begin[call + 1])
            if changed[line]
        }
        return BlockEnded(complete=True, late=tuple(sorted(late, key=lambda one: (one.call, one.output))))

    def _output_at(self, call: int, line: int) -> str:
        """Name of the output that a line belongs to."""
        offset = line * LINE_BYTES
        for _, leaf in placed_results(self._problem, self._plan.sets[call], self._rank):
            if leaf.offset <= offset < leaf.offset + max(1, leaf.leaf.capacity_bytes):
                return leaf.leaf.name
        raise AssertionError(f"no output at {offset}")
