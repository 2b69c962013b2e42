"""Conducts checked calls from a reference rank: hands whole arguments over, keeps whole outputs, delays ranks.

Between two calls the candidate's rank of the same number stands still until it is told to go on. Before a call its
arguments hold poison, and are put in place when the rank has come to the call. After it its arguments are poisoned
again, and its outputs are copied. One rank at a time is delayed, so that ranks that do not wait for it go ahead.
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
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.ranks.bound_block import BoundBlock
from pkb_gym.engine.ranks.handover_script import POISON
from pkb_gym.engine.ranks.red_zones import RedZones
from pkb_gym.engine.ranks.reference_orders import BlockEnded, CheckedCall, LateOutput
from pkb_gym.engine.rankside import abi
from pkb_gym.engine.rankside.arguments import TensorSlot
from pkb_gym.engine.rankside.wire import Wire

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap, Device

SETTLED_S = 300e-6
"""Ranks that have gone no further for so long do not without the one that is delayed."""

POLL_S = 20e-6
INTEGERS = ("int64", "int32", "uint8", "bool")
POISONS = (POISON, 0xFF)
"""Bytes of float tensors that are not there: a large negative number, NaN. One of them alone might be ignored."""


@dataclass
class _Departed:
    """What a call left behind, by name of the tensor.

    Attributes:
        outputs: copies, as the call had finished on this rank; in-place arguments included.
        arguments: copies of those that the call may not modify.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)


class Conductor:
    """One rank's part in conducting a block.

    Args:
        block: whose calls are conducted.
        calls: how each is.
        world_size: number of ranks.
        heap: of the candidate.
        device: of this rank.
        fds: the eventfds that the candidate's rank writes to, and reads.
    """

    def __init__(
        self,
        block: BoundBlock,
        calls: Sequence[CheckedCall],
        world_size: int,
        heap: AnyHeap,
        device: Device,
        fds: tuple[int, ...],
    ) -> None:
        self._problem, self._plan, self._rank = block.problem, block.plan.sets, block.rank
        self._calls, self._world_size = calls, world_size
        self._mine, self._theirs, self._device = block.heap, heap, device
        self._request_fd, self._reply_fd = fds
        self._departed: list[_Departed] = []
        self._calls_us: list[float] = []
        self._red_zones = RedZones(self._plan, self._rank)
        progress = self._mine.progress(self._rank)
        progress.reached = progress.arrived = 0

    def stage(self) -> None:
        """Puts poison, or for some calls the arguments themselves, where they will be."""
        for call, planned in enumerate(self._plan):
            for leaf in self._argument_leaves(planned):
                if _is_among(leaf, self._calls[call].withheld):
                    self._poison_argument(call, leaf)
                else:
                    self._put_in_place(leaf)
            self._poison_outputs(planned)
        self._red_zones.fill(self._theirs)

    def conduct(self, wire: Wire) -> None:
        """Serves the candidate's rank until all calls have departed, or the evaluator orders something else."""
        begun = 0.0
        for crossing in range(len(self._calls) + 1):
            if not self._wait_for_request(wire):
                return
            if crossing:
                self._calls_us.append((time.perf_counter() - begun) * 1e6)
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
            begun = time.perf_counter()
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
        overruns = self._red_zones.overruns(self._theirs)
        self._device.synchronize()
        complete = len(self._departed) == len(self._calls)
        return BlockEnded(complete, tuple(late), tuple(self._calls_us), tuple(overruns))

    def _restore(self, call: int, departed: _Departed) -> list[str]:
        """Puts back what the call had left; returns the names of outputs that have changed since."""
        planned = self._plan[call]
        late = []
        for leaf in self._result_leaves(planned):
            now, kept = self._theirs.tensor(_raw(leaf)), departed.outputs[leaf.leaf.name]
            if bool((now != kept).any()):
                late.append(leaf.leaf.name)
                now.copy_(kept)
        for leaf in self._immutable_leaves(planned):
            self._theirs.tensor(_raw(leaf)).copy_(departed.arguments[leaf.leaf.name])
        return late

    # ---- arrival and departure --------------------------------------------------------------------------------------

    def _arrive(self, call: int) -> None:
        planned = self._plan[call]
        for leaf in self._argument_leaves(planned):
            if _is_among(leaf, self._calls[call].withheld):
                self._put_in_place(leaf)
        self._poison_outputs(planned)
        self._device.synchronize()

    def _depart(self, call: int) -> None:
        """Arguments first: the sooner they are poisoned, the fewer ranks can still read them unnoticed."""
        planned, departed = self._plan[call], _Departed()
        for leaf in self._immutable_leaves(planned):
            departed.arguments[leaf.leaf.name] = self._theirs.tensor(_raw(leaf)).clone()
            if _is_among(leaf, self._calls[call].withdrawn):
                self._poison_argument(call, leaf)
        for leaf in self._result_leaves(planned):
            departed.outputs[leaf.leaf.name] = self._theirs.tensor(_raw(leaf)).clone()
        self._device.synchronize()
        self._departed.append(departed)

    def _put_in_place(self, leaf: PlacedLeaf) -> None:
        self._theirs.tensor(_raw(leaf)).copy_(self._mine.tensor(_raw(leaf)))

    def _poison_argument(self, call: int, leaf: PlacedLeaf) -> None:
        """Puts there what must not be read.

        Whole numbers may be indices, and wrong ones would end in a crash: they are taken from another call, or where
        that has another shape, from elsewhere in the same tensor.
        """
        if leaf.leaf.dtype not in INTEGERS:
            self._theirs.tensor(byte_slot(leaf.offset, leaf.leaf.capacity_bytes)).fill_(POISONS[call % 2])
            return
        own = self._mine.tensor(leaf.slot)
        other = self._plan[(call + 1) % len(self._plan)].leaves[self._rank].get(leaf.leaf.name)
        decoy = own if other is None or other.leaf.shape != leaf.leaf.shape else self._mine.tensor(other.slot)
        if bool((decoy == own).all()):
            decoy = own.view(-1).roll(1 + call).view(own.shape)
        self._theirs.tensor(leaf.slot).copy_(decoy)

    def _poison_outputs(self, planned: SetPlan) -> None:
        outputs = byte_slot(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
        self._theirs.tensor(outputs).fill_(POISON)

    def _argument_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        ax, placed = planned.axes[self._rank], planned.leaves[self._rank]
        return [placed[leaf.name] for arg in self._problem.data_args for leaf in argument_leaves(arg, ax)]

    def _immutable_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        names = {leaf.name for leaf, _ in immutable_leaves(self._problem, planned, self._rank)}
        return [leaf for leaf in self._argument_leaves(planned) if leaf.leaf.name in names]

    def _result_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        return [leaf for _, leaf in placed_results(self._problem, planned, self._rank)]

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def _wait_for_request(self, wire: Wire) -> bool:
        """Waits for the candidate's rank; False where the evaluator orders something first."""
        ready = select.select([self._request_fd, wire.fileno()], [], [])[0]
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
        return bool((progress.arrived if arrived else progress.reached) > crossing)

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
        """Whether another rank goes no further before this one, which is late at a crossing, goes on.

        It has finished all calls, or waits for a signal, as far as it tells; or it has come to a call that all begin
        together; or it is late itself, in an earlier call: of two late ranks the one that is ahead goes on first.
        """
        progress = self._mine.progress(rank)
        at = int(progress.reached) - 1
        if at == len(self._calls) or self._theirs.place(rank).state == abi.State.WAITING:
            return True
        if at > crossing:
            return self._calls[at].together
        return bool(0 <= at < crossing and progress.arrived == at and self._calls[at].late_rank == rank)


def _is_among(leaf: PlacedLeaf, names: tuple[str, ...] | None) -> bool:
    return names is None or leaf.leaf.name in names


def _raw(leaf: PlacedLeaf) -> TensorSlot:
    """All bytes of a leaf."""
    return word_slot(leaf.offset, leaf.leaf.capacity_bytes)
