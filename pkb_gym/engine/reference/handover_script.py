"""The lines of a block's tensors that are withheld, poisoned and sampled at the handovers between its calls.

A line is 64 bytes of a segment. Small tensors are withheld whole, of large ones a few lines at random places: how long
a handover takes does not depend on sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.compare.layout import BlockPlan, PlacedLeaf, SetPlan, placed_results
from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.problem import Problem, Tensor, TensorList
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, output_leaves
from pkb_gym.engine.reference.decoys import draw_decoys

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

LINE_BYTES = 64
ARRIVALS, POISONS, RECEIPTS = 24, 16, 24
"""Most lines of one call, as in `wire/mailbox.h`."""

WHOLE_LINES = 4
"""A tensor of no more lines is withheld whole, as far as there is room."""

Lines = NDArray[np.uint32]


@dataclass(frozen=True)
class CallLines:
    """Lines of consecutive calls of one kind.

    Attributes:
        begin: [calls + 1]; call c's lines are `lines[begin[c] : begin[c + 1]]`.
        lines: Their indices in the segment.
    """

    begin: NDArray[np.int32]
    lines: Lines

    @classmethod
    def of(cls, calls: Sequence[Lines]) -> CallLines:
        """One after the other."""
        begin = np.zeros(len(calls) + 1, np.int32)
        begin[1:] = np.cumsum([len(lines) for lines in calls])
        return cls(begin, np.concatenate([*calls, np.zeros(0, np.uint32)]).astype(np.uint32))


@dataclass(frozen=True)
class Script:
    """The handovers of one block of one rank.

    Attributes:
        arrivals: Lines of arguments, of each call those first that are withdrawn after it.
        withdrawals: [calls]: how many that are; the others belong to arguments that the call may overwrite.
        values: [arrivals, LINE_BYTES]: what they hold.
        decoys: [arrivals, LINE_BYTES]: what they hold before; see `decoys`.
        poisons: Lines of outputs that are poisoned before a call.
        receipts: Lines of outputs that are copied after it.
        delays_us: [calls]: how much later than need be the arguments arrive.
        takes_outputs: Whether the lines of receipts are poisoned once they are copied: what a rank reads of a peer's
            outputs after that one has departed is wrong.
    """

    arrivals: CallLines
    withdrawals: NDArray[np.int32]
    values: NDArray[np.uint8]
    decoys: NDArray[np.uint8]
    poisons: CallLines
    receipts: CallLines
    delays_us: NDArray[np.int32]
    takes_outputs: bool = False

    @property
    def calls(self) -> int:
        """The calls of the block."""
        return len(self.delays_us)

    def late_by(self, delays_us: Sequence[int]) -> Script:
        """The same lines, arriving so much later in each call; no later where there are no delays."""
        return replace(self, delays_us=np.array(delays_us[: self.calls], np.int32)) if delays_us else self

    def withdrawn(self) -> tuple[Lines, NDArray[np.uint8]]:
        """All lines that are withdrawn after their call, and what they hold."""
        index = np.concatenate(
            [
                np.arange(self.arrivals.begin[call], self.arrivals.begin[call] + count)
                for call, count in enumerate(self.withdrawals)
            ]
            or [np.zeros(0, np.int64)]
        ).astype(np.int64)
        return self.arrivals.lines[index], self.values[index]


def write_script(problem: Problem, plan: BlockPlan, rank: int, heap: AnyHeap, seed: int) -> Script:
    """Draws the script of a block, without delays.

    Args:
        problem: Declaration of the problem.
        plan: Places of the block's tensors in the heap.
        rank: Number of the rank that the script is for.
        heap: Heap with the inputs as they were made.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    arrivals = _Arrivals()
    poisons: list[Lines] = []
    receipts: list[Lines] = []
    for run in plan.runs:
        leaves = _Leaves.of(problem, run[0], rank)
        offsets = np.array([planned.offset for planned in run]) // LINE_BYTES
        lasting = _draw(leaves.immutable, offsets, run[0].offset, ARRIVALS, rng)
        changing = _draw(leaves.mutable, offsets, run[0].offset, ARRIVALS - len(lasting.leaves), rng)
        arrivals.add(lasting, changing)
        poisons += list(_draw(leaves.outputs, offsets, run[0].offset, POISONS, rng).lines)
        receipts += list(_draw(leaves.results, offsets, run[0].offset, RECEIPTS, rng).lines)
    lines = CallLines.of(arrivals.of_calls)
    values = lines_of(heap, lines.lines)
    return Script(
        arrivals=lines,
        withdrawals=np.array(arrivals.withdrawals, np.int32),
        values=values,
        decoys=arrivals.decoys(values, rng),
        poisons=CallLines.of(poisons),
        receipts=CallLines.of(receipts),
        delays_us=np.zeros(len(plan.sets), np.int32),
    )


def null_script(planned: SetPlan, calls: int) -> Script:
    """The script of calls of nothing, with as many lines as any call can have.

    Args:
        planned: The lines are those of its tensors, which a block overwrites later.
        calls: Number of calls in the block, at least 1.
    """
    first, count = planned.offset // LINE_BYTES, max(1, planned.nbytes // LINE_BYTES)
    arrivals, poisons, receipts = (
        (first + np.arange(lines) % count).astype(np.uint32) for lines in (ARRIVALS, POISONS, RECEIPTS)
    )
    values = np.zeros((calls * ARRIVALS, LINE_BYTES), np.uint8)
    return Script(
        arrivals=CallLines.of([arrivals] * calls),
        withdrawals=np.full(calls, ARRIVALS, np.int32),
        values=values,
        decoys=values,
        poisons=CallLines.of([poisons] * calls),
        receipts=CallLines.of([receipts] * calls),
        delays_us=np.zeros(calls, np.int32),
    )


@dataclass(frozen=True)
class _Leaves:
    """A rank's tensors by what a handover does with them."""

    immutable: list[PlacedLeaf]
    mutable: list[PlacedLeaf]
    outputs: list[PlacedLeaf]
    results: list[PlacedLeaf]

    @classmethod
    def of(cls, problem: Problem, plan: SetPlan, rank: int) -> _Leaves:
        ax, placed = plan.axes[rank], plan.leaves[rank]
        kinds: Mapping[bool, list[PlacedLeaf]] = {False: [], True: []}
        for arg in problem.data_args:
            mutable = isinstance(arg, Tensor | TensorList) and arg.mutable
            kinds[mutable].extend(placed[leaf.name] for leaf in argument_leaves(arg, ax))
        outputs = [placed[leaf.name] for out in problem.returned for leaf in output_leaves(out, ax)]
        results = [one for _, one in placed_results(problem, plan, rank)]
        return cls(kinds[False], kinds[True], outputs, results)


@dataclass(frozen=True)
class _Drawn:
    """Lines that were drawn for the calls of a run: others for each call, as many for all.

    Attributes:
        lines: [calls, lines].
        leaves: [lines]: the tensor of each, the same in all calls.
        inside: [calls, lines]: how many bytes of each, the first, belong to the tensor.
    """

    lines: Lines
    leaves: Sequence[Leaf]
    inside: NDArray[np.int64]


class _Arrivals:
    """The withheld lines of all calls.

    Attributes:
        of_calls: Lines of each call.
        withdrawals: Number of each call's first lines that are withdrawn after it.
    """

    def __init__(self) -> None:
        self.of_calls: list[Lines] = []
        self.withdrawals: list[int] = []
        self._dtypes: dict[str, str] = {}
        self._leaves: list[str] = []
        self._inside: list[NDArray[np.int64]] = []

    def add(self, lasting: _Drawn, changing: _Drawn) -> None:
        """The next run of calls: lines of arguments that a call may not overwrite, and of others."""
        calls, leaves = len(lasting.lines), [*lasting.leaves, *changing.leaves]
        self.of_calls += list(np.concatenate([lasting.lines, changing.lines], axis=1))
        self.withdrawals += [len(lasting.leaves)] * calls
        self._dtypes |= {leaf.name: leaf.dtype for leaf in leaves}
        self._leaves += [leaf.name for leaf in leaves] * calls
        self._inside.append(np.concatenate([lasting.inside, changing.inside], axis=1).ravel())

    def decoys(self, values: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """The content of the lines before they arrive; poison where the tensor has no other elements.

        Args:
            values: [lines, LINE_BYTES] of all calls.
            rng: Draws them.
        """
        decoys = values.copy()
        inside, leaves = np.concatenate([*self._inside, np.zeros(0, np.int64)]), np.array(self._leaves)
        for name, dtype in self._dtypes.items():
            own = np.flatnonzero(leaves == name)
            decoys[own] = draw_decoys(dtype, values[own], inside[own], rng)
        decoys[(decoys == values).all(axis=1)] = POISON
        return decoys


def _draw(
    leaves: Sequence[PlacedLeaf], offsets: NDArray[np.int64], base: int, most: int, rng: np.random.Generator
) -> _Drawn:
    """Lines of some leaves.

    Args:
        leaves: Leaves of the first call.
        offsets: Offset of each call's set, in lines.
        base: Offset of the first set, in bytes.
        most: Number of lines, at most.
        rng: Draws them.
    """
    kept = [leaf for leaf in leaves if leaf.leaf.capacity_bytes]
    if len(kept) > most:
        kept = [kept[i] for i in rng.choice(len(kept), most, replace=False)]
    sizes = np.array([-(-leaf.leaf.capacity_bytes // LINE_BYTES) for leaf in kept], np.int64)
    counts = _share_out(sizes, most)
    lines, inside, drawn = (
        [np.zeros((len(offsets), 0), np.int64)],
        [np.zeros((len(offsets), 0), np.int64)],
        list[Leaf](),
    )
    for leaf, size, count in zip(kept, sizes, counts, strict=True):
        shape = (len(offsets), int(count))  # of large tensors, all lines of all calls would fill memory
        within = rng.integers(0, size, shape) if count < size else np.broadcast_to(np.arange(size), shape)
        lines.append(offsets[:, None] + (leaf.offset - base) // LINE_BYTES + within)
        inside.append(np.minimum(leaf.leaf.capacity_bytes - LINE_BYTES * within, LINE_BYTES))
        drawn += [leaf.leaf] * int(count)
    return _Drawn(np.concatenate(lines, axis=1).astype(np.uint32), drawn, np.concatenate(inside, axis=1))


def _share_out(sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The number of lines of each tensor: one at least, small ones whole, the rest evenly among the large ones."""
    counts = np.minimum(sizes, 1)
    for index in np.argsort(sizes, kind="stable"):
        if sizes[index] <= WHOLE_LINES and counts.sum() - counts[index] + sizes[index] <= most:
            counts[index] = sizes[index]
    growing = [index for index in range(len(sizes)) if counts[index] < sizes[index]]
    while growing and counts.sum() < most:
        for index in growing[: most - int(counts.sum())]:
            counts[index] += 1
        growing = [index for index in growing if counts[index] < sizes[index]]
    return counts


def lines_of(heap: AnyHeap, lines: Lines) -> NDArray[np.uint8]:
    """The content of some lines of a rank's own segment, [lines, LINE_BYTES]."""
    return _segment_lines(heap).index_select(0, _line_index(heap, lines)).cpu().numpy()


def put_lines(heap: AnyHeap, lines: Lines, contents: NDArray[np.uint8]) -> None:
    """Overwrites some lines of a rank's own segment."""
    import torch

    index = _line_index(heap, lines)
    _segment_lines(heap).index_copy_(0, index, torch.from_numpy(contents).to(index.device))


def _segment_lines(heap: AnyHeap) -> torch.Tensor:
    return heap.bytes().view(-1, LINE_BYTES)


def _line_index(heap: AnyHeap, lines: Lines) -> torch.Tensor:
    import torch

    return torch.from_numpy(lines.astype(np.int64)).to(heap.bytes().device)
