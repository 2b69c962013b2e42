"""Conducts checked calls: from a reference rank, hands whole arguments over, keeps whole outputs, and delays ranks.

Between two calls the candidate's rank of the same number stands still until it is told to go on. Before its call every
argument holds poison; its arguments are put in place when it has come to the call. After it, its outputs are copied, and
its arguments hold poison again. Ranks are delayed one at a time, so that those go ahead that do not wait for them.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pkb_gym.engine.compare.calls import immutable_leaves
from pkb_gym.engine.compare.layout import PlacedLeaf, SetPlan, placed_results
from pkb_gym.engine.compare.stacked import byte_slot, word_slot
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.ranks.handover_script import POISON
from pkb_gym.engine.ranks.reference_orders import BlockEnded, CheckedCall, LateOutput
from pkb_gym.engine.rankside import abi
from pkb_gym.engine.rankside.arguments import TensorSlot
from pkb_gym.engine.rankside.wire import Wire

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap, Device

SETTLED_S = 300e-6
"""Ranks that have waited for so long, or are done, go no further without the one that is delayed."""

POLL_S = 20e-6
INTEGERS = ("int64", "int32", "uint8", "bool")
POISONS = (POISON, 0xFF)
"""Bytes of float tensors that are not there: a large negative number, NaN. One of them alone might be ignored."""


@dataclass
class _Departed:
    """What a call left behind.

    Attributes:
        outputs: name -> copy, as the call had finished on this rank.
        modified: arguments that were not what had been put there -> what they were.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    modified: dict[str, torch.Tensor] = field(default_factory=dict)


class Conductor:
    """One rank's part in conducting a block.

    Args:
        problem: its declaration.
        plan: where the tensors of each call lie.
        calls: how each is conducted.
        rank: of the reference gang, and of the candidate's rank.
        world_size: number of ranks.
        reference_heap: holds the inputs as they were made.
        candidate_heap: that the calls work on.
        device: of this rank.
        request_fd: an eventfd that the candidate's rank writes to.
        reply_fd: an eventfd that it reads.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Sequence[SetPlan],
        calls: Sequence[CheckedCall],
        rank: int,
        world_size: int,
        reference_heap: AnyHeap,
        candidate_heap: AnyHeap,
        device: Device,
        request_fd: int,
        reply_fd: int,
    ) -> None:
        self._problem, self._plan, self._calls = problem, plan, calls
        self._rank, self._world_size = rank, world_size
        self._mine, self._theirs, self._device = reference_heap, candidate_heap, device
        self._request_fd, self._reply_fd = request_fd, reply_fd
        self._departed: list[_Departed] = []
        progress = reference_heap.progress(rank)
        progress.reached = progress.arrived = 0

    def stage(self) -> None:
        """Puts poison, or for some calls the arguments themselves, where they will be."""
        for call, planned in enumerate(self._plan):
            for leaf in self._argument_leaves(planned):
                if self._is_withheld(call, leaf):
                    self._poison_argument(call, leaf)
                else:
                    self._put_in_place(leaf)
            self._poison_outputs(planned)

    def conduct(self, wire: Wire) -> None:
        """Serves the candidate's rank until all calls have departed, or the evaluator orders something else."""
        for crossing in range(len(self._calls) + 1):
            if not self._wait_for_request(wire):
                return
            progress = self._mine.progress(self._rank)
            progress.reached = crossing + 1
            if crossing:
                if self._calls[crossing - 1].together and not self._wait_until_all(wire, crossing, arrived=False):
                    return
                self._depart(crossing - 1)
            if crossing < len(self._calls):
                call = self._calls[crossing]
                if call.late_rank == self._rank:
                    self._be_late(crossing, call.delay_s)
                self._arrive(crossing)
                progress.arrived = crossing + 1
                if call.together and not self._wait_until_all(wire, crossing, arrived=True):
                    return
            os.eventfd_write(self._reply_fd, 1)

    def end(self) -> BlockEnded:
        """Leaves the candidate's heap as the calls did; the gang must be frozen.

        Outputs are what they were when each call had finished on this rank, arguments what the call had left.
        """
        late = [
            LateOutput(call, name)
            for call, departed in enumerate(self._departed)
            for name in self._restore(call, departed)
        ]
        self._device.synchronize()
        return BlockEnded(len(self._departed) == len(self._calls), tuple(late))

    def _restore(self, call: int, departed: _Departed) -> list[str]:
        """Names of outputs that have changed since the call had finished."""
        planned = self._plan[call]
        late = []
        for leaf in self._result_leaves(planned):
            now = self._theirs.tensor(_raw(leaf))
            kept = departed.outputs[leaf.leaf.name]
            if bool((now != kept).any()):
                late.append(leaf.leaf.name)
                now.copy_(kept)
        results = {leaf.leaf.name for leaf in self._result_leaves(planned)}
        for leaf in self._argument_leaves(planned):
            if leaf.leaf.name in departed.modified:
                self._theirs.tensor(_raw(leaf)).copy_(departed.modified[leaf.leaf.name])
            elif leaf.leaf.name not in results:
                self._put_in_place(leaf)
        return late

    # ---- arrival and departure --------------------------------------------------------------------------------------

    def _arrive(self, call: int) -> None:
        planned = self._plan[call]
        for leaf in self._argument_leaves(planned):
            if self._is_withheld(call, leaf):
                self._put_in_place(leaf)
        self._poison_outputs(planned)
        self._device.synchronize()

    def _depart(self, call: int) -> None:
        planned, departed = self._plan[call], _Departed()
        for leaf in self._result_leaves(planned):
            departed.outputs[leaf.leaf.name] = self._theirs.tensor(_raw(leaf)).clone()
        immutable = {leaf.name for leaf, _ in immutable_leaves(self._problem, planned, self._rank)}
        for leaf in self._argument_leaves(planned):
            if leaf.leaf.name not in immutable:
                continue
            before, after = (heap.tensor(_raw(leaf)) for heap in (self._mine, self._theirs))
            if bool((before != after).any()):
                departed.modified[leaf.leaf.name] = after.clone()
            if self._calls[call].withdraws and self._is_withheld(call, leaf):
                self._poison_argument(call, leaf)
        self._device.synchronize()
        self._departed.append(departed)

    def _is_withheld(self, call: int, leaf: PlacedLeaf) -> bool:
        names = self._calls[call].withheld
        return names is None or leaf.leaf.name in names

    def _put_in_place(self, leaf: PlacedLeaf) -> None:
        self._theirs.tensor(_raw(leaf)).copy_(self._mine.tensor(_raw(leaf)))

    def _poison_argument(self, call: int, leaf: PlacedLeaf) -> None:
        """What is read too early, or too late: in whole numbers other ones of the same tensor, which stay legal."""
        theirs = self._theirs.tensor(_raw(leaf))
        if leaf.leaf.dtype in INTEGERS and leaf.leaf.shape is not None:
            own = self._mine.tensor(leaf.slot).view(-1)
            self._theirs.tensor(leaf.slot).view(-1).copy_(own.roll(1 + call))
        else:
            theirs.fill_(POISONS[call % 2])

    def _poison_outputs(self, planned: SetPlan) -> None:
        outputs = byte_slot(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
        self._theirs.tensor(outputs).fill_(POISON)

    def _argument_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        ax, placed = planned.axes[self._rank], planned.leaves[self._rank]
        return [placed[leaf.name] for arg in self._problem.data_args for leaf in argument_leaves(arg, ax)]

    def _result_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        return [leaf for _, leaf in placed_results(self._problem, planned, self._rank)]

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def _wait_for_request(self, wire: Wire) -> bool:
        """Waits for the candidate's rank; False where the evaluator orders something first."""
        ready = select.select([self._request_fd, wire], [], [])[0]
        if self._request_fd not in ready:
            return False
        os.eventfd_read(self._request_fd)
        return True

    def _wait_until_all(self, wire: Wire, crossing: int, arrived: bool) -> bool:
        """Waits until all ranks have come to a crossing, or have their arguments in place there; False as above."""
        while not all(self._is_at(rank, crossing, arrived) for rank in range(self._world_size)):
            if wire.pending():
                return False
            time.sleep(POLL_S)
        return True

    def _is_at(self, rank: int, crossing: int, arrived: bool) -> bool:
        progress = self._mine.progress(rank)
        return (progress.arrived if arrived else progress.reached) > crossing

    def _be_late(self, crossing: int, delay_s: float) -> None:
        """Stands still until the other ranks have gone as far as they do without this one, at most for that long."""
        deadline = time.monotonic() + delay_s
        settled_since: float | None = None
        while (now := time.monotonic()) < deadline:
            if all(self._goes_no_further(rank, crossing) for rank in range(self._world_size) if rank != self._rank):
                settled_since = settled_since or now
                if now - settled_since > SETTLED_S:
                    return
            else:
                settled_since = None
            time.sleep(POLL_S)

    def _goes_no_further(self, rank: int, crossing: int) -> bool:
        """Whether another rank has finished the call, or waits for a signal, as far as it tells."""
        return self._is_at(rank, crossing + 1, False) or self._theirs.place(rank).state == abi.State.WAITING


def _raw(leaf: PlacedLeaf) -> TensorSlot:
    """All bytes of a leaf."""
    return word_slot(leaf.offset, leaf.leaf.capacity_bytes)
