"""Conducts checked calls from a reference rank: hands whole arguments over, keeps whole outputs, delays ranks.

Between two calls the candidate's rank of the same number stands still until it is released. Before a call its
arguments hold poison, and are put in place when the rank has reached the call. After it its arguments are poisoned
again, and its outputs are taken. One rank at a time is delayed, so that ranks that do not wait for it go ahead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pkb_gym.engine.compare.calls import immutable_leaves
from pkb_gym.engine.compare.layout import PlacedLeaf, SetPlan, placed_results
from pkb_gym.engine.compare.poison import POISON, poison_of
from pkb_gym.engine.compare.stacked import byte_slot, word_slot
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.call_progress import CallProgress
from pkb_gym.engine.reference.interruptions import Interruptions
from pkb_gym.engine.reference.orders import BlockEnded, CheckedCall, LateOutput
from pkb_gym.engine.reference.preemption import Preemption
from pkb_gym.engine.reference.red_zones import RedZones
from pkb_gym.engine.reference.turns import Turns
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.frames import Wire

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap, Device

INTEGERS = ("int64", "int32", "uint8", "bool")
POISONS = (POISON, 0xFF)
"""Bytes of float tensors that are not there: a large negative number, NaN. One of them alone might be ignored."""


@dataclass
class _Departed:
    """The outputs and arguments after a call, by name of the tensor.

    Attributes:
        outputs: Copies, as the call had finished on this rank; in-place arguments included.
        arguments: Copies of those that the call may not modify.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)


class Conductor:
    """One rank's part in conducting a block.

    Args:
        block: Block whose calls are conducted.
        calls: Conduct of each call.
        world_size: Number of ranks.
        heap: Heap of the candidate.
        device: Device of this rank.
        fds: The eventfds that the candidate's rank writes to, and reads.
        interruptions: Interruptions of the candidate's rank; None where it has no process of its own.
        preemption: Preemption of the candidate's rank; None where it has neither a process nor a GPU of its own.
    """

    def __init__(
        self,
        block: BoundBlock,
        calls: Sequence[CheckedCall],
        world_size: int,
        heap: AnyHeap,
        device: Device,
        fds: tuple[int, ...],
        interruptions: Interruptions | None = None,
        preemption: Preemption | None = None,
    ) -> None:
        self._problem, self._plan, self._rank = block.problem, block.plan.sets, block.rank
        self._calls = calls
        self._mine, self._theirs, self._device = block.heap, heap, device
        self._request_fd, self._reply_fd = fds
        self._interruptions = interruptions
        self._progress = CallProgress(calls, self._rank, world_size, self._mine, self._theirs)
        self._turns = Turns(calls, self._rank, self._progress, preemption, self._request_fd)
        self._departed: list[_Departed] = []
        self._calls_us: list[float] = []
        self._red_zones = RedZones(block.plan, block.rank)

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
        begun, progress = 0.0, self._progress
        for crossing in range(len(self._calls) + 1):
            if not progress.wait_for_request(wire, self._request_fd, crossing):
                return
            if crossing:
                self._calls_us.append((time.perf_counter() - begun) * 1e6)
            progress.reach(crossing)
            if crossing:
                if self._calls[crossing - 1].together and not progress.wait_until_all(wire, crossing, arrived=False):
                    return
                self._depart(crossing - 1)
            if crossing < len(self._calls):
                call = self._calls[crossing]
                if call.late_rank == self._rank:
                    progress.be_late(crossing, call.delay_s)
                self._arrive(crossing)
                progress.arrive(crossing)
                if call.together and not progress.wait_until_all(wire, crossing, arrived=True):
                    return
                self._turns.wait(crossing)
            begun = time.perf_counter()
            interruptions = self._interruptions_of(crossing)
            with contextlib.nullcontext() if interruptions is None else interruptions.stopped():
                if not progress.reply(wire, self._reply_fd):
                    return
                self._turns.take(wire, crossing)
                if interruptions is not None:
                    run_s = self._calls[crossing].run_s
                    interruptions.interrupt(run_s, progress, crossing, (self._request_fd, wire.fileno()))

    def _interruptions_of(self, call: int) -> Interruptions | None:
        return self._interruptions if call < len(self._calls) and self._calls[call].run_s else None

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
            if bool((now != self._taken(call, leaf, kept)).any()):
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
            now = self._theirs.tensor(_raw(leaf))
            departed.outputs[leaf.leaf.name] = kept = now.clone()
            now.copy_(self._taken(call, leaf, kept))
        self._device.synchronize()
        self._departed.append(departed)

    def _taken(self, call: int, leaf: PlacedLeaf, kept: torch.Tensor) -> torch.Tensor:
        """What an output holds, as raw words, once its rank has departed: others work on it.

        Args:
            call: Number of the call.
            leaf: Place of the output.
            kept: What the call has left there, as raw words.
        """
        if not _is_among(leaf, self._calls[call].withdrawn):
            return kept
        if leaf.leaf.dtype in INTEGERS:  # they may be indices, as those of arguments
            return kept.roll(1)
        import torch

        return torch.full_like(kept.view(torch.uint8), POISONS[call % 2]).view(kept.dtype)

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
        self._theirs.tensor(outputs).fill_(poison_of(self._rank))

    def _argument_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        ax, placed = planned.axes[self._rank], planned.leaves[self._rank]
        return [placed[leaf.name] for arg in self._problem.data_args for leaf in argument_leaves(arg, ax)]

    def _immutable_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        names = {leaf.name for leaf, _ in immutable_leaves(self._problem, planned, self._rank)}
        return [leaf for leaf in self._argument_leaves(planned) if leaf.leaf.name in names]

    def _result_leaves(self, planned: SetPlan) -> list[PlacedLeaf]:
        return [leaf for _, leaf in placed_results(self._problem, planned, self._rank)]


def _is_among(leaf: PlacedLeaf, names: tuple[str, ...] | None) -> bool:
    return names is None or leaf.leaf.name in names


def _raw(leaf: PlacedLeaf) -> TensorSlot:
    """All bytes of a leaf."""
    return word_slot(leaf.offset, leaf.leaf.capacity_bytes)
