"""The layout of the arguments and outputs of a block of calls in the symmetric heap.

A pure function of declaration and axes: the evaluator and every reference rank compute it alike. The same layout is
used twice, for the candidate's heap and for the reference gang's own, which holds the inputs as they were made.
"""

from __future__ import annotations

import hmac
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from pkb_gym.engine.problem import (
    Group,
    InPlace,
    Output,
    OutputList,
    Problem,
)
from pkb_gym.engine.problem.axes import Axes, AxisValue
from pkb_gym.engine.problem.inputs import Draw, TrialKey
from pkb_gym.engine.problem.recurrence import NEW, Recurrence
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, output_leaves
from pkb_gym.engine.wire.abi import SCRATCH_OFFSET
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.orders import Dialect

ALIGNMENT_BYTES = 256
"""Alignment of every tensor: a GPU's widest bulk copies ask for 128, and no two tensors share a cache line."""

RED_ZONE_BYTES = 256
"""Behind every tensor and scratch, at least: bytes that no kernel may write to, see `reference/red_zones.py`."""

PAGE_BYTES = 4096
MAX_GAP_PAGES = 4
"""Maximum size of all gaps between the sets of a block together, for each set."""

FIRST_TRIALS = 4
"""Trials that show whether the axes of timed ones vary."""

EVERY_TRIAL = "every trial"
"""Key of axes that do not vary."""


class PlacedLeaf(NamedTuple):
    """One leaf and its place, the same in every segment: a tuple, as a block has thousands of them."""

    leaf: Leaf
    offset: int

    @property
    def slot(self) -> TensorSlot:
        """The form that rank programs receive."""
        return TensorSlot(self.offset, self.leaf.shape, self.leaf.dtype, self.leaf.capacity)


@dataclass(frozen=True)
class SetPlan:
    """One call's arguments and outputs.

    Attributes:
        trial: Index of the trial.
        axes: Axes of each rank.
        offset, nbytes: Byte range of the set in each segment.
        outputs_offset: Offset in bytes where arguments end and outputs begin.
        leaves: Placed leaves by name, for each rank.
        recurrence: Return of an earlier call in this one.
    """

    trial: int
    axes: tuple[Axes, ...]
    offset: int
    nbytes: int
    outputs_offset: int
    leaves: tuple[Mapping[str, PlacedLeaf], ...]
    recurrence: Recurrence = NEW


@dataclass(frozen=True)
class BlockPlan:
    """The argument sets of consecutive calls.

    Attributes:
        sets: Argument set of each call.
        scratch_bytes: Size of the symmetric scratch in front of the sets, in bytes.
        end: Offset of the first free byte of a segment behind the sets.
        partitions: Partitions of the ranks, as from `partitions_of`.
        is_placed: Whether the offsets of the sets were given, instead of drawn.
    """

    sets: tuple[SetPlan, ...]
    scratch_bytes: int
    end: int
    partitions: tuple[tuple[tuple[int, ...], ...], ...]
    is_placed: bool = False

    @property
    def scratch_end(self) -> int:
        """First byte of a segment behind the scratch."""
        return SCRATCH_OFFSET + self.scratch_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments and outputs, on each rank."""
        return sum(planned.nbytes for planned in self.sets)

    @property
    def runs(self) -> list[list[SetPlan]]:
        """The sets in order, together where they have the same axes, and differ in nothing but their places."""
        return [list(run) for _, run in itertools.groupby(self.sets, lambda plan: id(plan.axes))]


def align(offset: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def plan_set(problem: Problem, trial: int, axes: Sequence[Axes], offset: int) -> SetPlan:
    """Lays out one call's tensors from `offset` on: arguments, then outputs, each at one offset on all ranks."""
    arguments = [[leaf for arg in problem.data_args for leaf in argument_leaves(arg, ax)] for ax in axes]
    outputs = [[leaf for out in problem.returned for leaf in output_leaves(out, ax)] for ax in axes]
    argument_offsets, outputs_offset = _offsets(arguments, offset)
    # Outputs are poisoned and compared page by page; arguments next to them must not share one.
    outputs_offset = align(outputs_offset, PAGE_BYTES)
    output_offsets, end = _offsets(outputs, outputs_offset)
    places = argument_offsets | output_offsets
    placed = tuple(
        {leaf.name: PlacedLeaf(leaf, places[leaf.name]) for leaf in (*arguments[rank], *outputs[rank])}
        for rank in range(len(axes))
    )
    end = align(end, PAGE_BYTES)
    return SetPlan(trial, tuple(axes), offset, end - offset, outputs_offset, placed)


def _offsets(leaves: Sequence[Sequence[Leaf]], offset: int) -> tuple[dict[str, int], int]:
    """Offsets by leaf name, with a red zone behind each.

    A leaf takes the room of the largest rank, and ranks that lack it leave it free.
    """
    sizes: dict[str, int] = {}
    for rank_leaves in leaves:
        for leaf in rank_leaves:
            sizes[leaf.name] = max(sizes.get(leaf.name, 0), leaf.capacity_bytes)
    offsets = {}
    for name, nbytes in sizes.items():
        offsets[name] = offset
        offset = align(offset + nbytes + RED_ZONE_BYTES)
    return offsets, offset


@dataclass(frozen=True)
class Workload:
    """The workload of an evaluation and the origin of its inputs. Travels to the reference gang as JSON.

    Inputs of checked trials are the same for all sources, so that a mended one meets those that the one before failed
    on. Those of timed trials are of each attempt: what a source leaves behind in one attempt, such as its inputs and
    results, is of no use to the next one. Without source and nonce, as in a study, those of the key alone.
    """

    problem: Problem
    size: str | Mapping[str, AxisValue]
    world_size: int
    dtype: str
    protocol: str
    key: bytes
    seed: int
    turn: int
    source_sha256: str = ""
    nonce: str = ""
    _axes: dict[object, tuple[Axes, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def trial_key(self, trial: int, timed: bool, recurrence: Recurrence = NEW) -> TrialKey:
        """Names one trial."""
        key = self._attempt_key if timed else self.key
        return TrialKey(key, self.seed, self.problem.name, self.turn, trial, timed, recurrence)

    @cached_property
    def _attempt_key(self) -> bytes:
        attempt = self.source_sha256 + self.nonce
        return hmac.digest(self.key, attempt.encode(), "sha256") if attempt else self.key

    def axes(self, trial: int, timed: bool) -> tuple[Axes, ...]:
        """Every rank's axes of one trial; trials whose axes are equal share one object.

        Raises:
            SizeError: they do not fit together.
        """
        fixed = self.problem.trials(self.protocol).vary is None
        if fixed and EVERY_TRIAL in self._axes:
            return self._axes[EVERY_TRIAL]
        draw = Draw(self.trial_key(trial, timed))
        with self.problem.fitting_axes(self.size):
            varied = self.problem.varied_axes(self.size, self.world_size, self.dtype, self.protocol, draw)
            key = EVERY_TRIAL if fixed else tuple(varied.entries.items())
            if key not in self._axes:
                ranks = range(self.world_size)
                self._axes[key] = tuple(self.problem.derived_axes(varied, rank) for rank in ranks)
        return self._axes[key]

    @cached_property
    def timed_axes_vary(self) -> bool:
        """Whether timed trials have axes of their own each, as the first ones show."""
        return len({id(self.axes(trial, True)) for trial in range(FIRST_TRIALS)}) > 1

    def plan(
        self,
        trials: Sequence[int],
        timed: bool,
        scratch_bytes: int,
        segment_bytes: int = 0,
        offsets: Sequence[int] = (),
        recurrences: Sequence[Recurrence] = (),
    ) -> BlockPlan:
        """Lays out one block, a set per trial, in an unpredictable order and with unpredictable gaps.

        Args:
            trials: Trial index of each call.
            timed: Whether the trials serve timing.
            scratch_bytes: Size of the symmetric scratch, which comes first, in bytes.
            segment_bytes: Size of the segment in bytes, which bounds the gaps; without room for any, there are none.
            offsets: Offset of each set in bytes, instead of that order and those gaps; empty for those.
            recurrences: Return of an earlier call in each call; empty for none.
        """
        begin = align(SCRATCH_OFFSET + scratch_bytes + RED_ZONE_BYTES, PAGE_BYTES)
        sets: list[SetPlan] = []
        for trial in trials:
            axes = self.axes(trial, timed)
            alike = sets and sets[-1].axes is axes
            sets.append(_moved(sets[-1], trial, 0) if alike else plan_set(self.problem, trial, axes, 0))
        places = offsets
        if not places:
            total = sum(planned.nbytes for planned in sets)
            gaps = max(0, segment_bytes - begin - total) // PAGE_BYTES
            rng = random.Random(self.trial_key(trials[0], timed).derive_seed("places"))
            drawn = _places([planned.nbytes for planned in sets], min(gaps, MAX_GAP_PAGES * len(sets)), rng)
            places = [begin + place for place in drawn]
        placed = [_moved(planned, planned.trial, place) for planned, place in zip(sets, places, strict=True)]
        if recurrences:
            placed = [replace(planned, recurrence=one) for planned, one in zip(placed, recurrences, strict=True)]
        end = max(begin, *(planned.offset + planned.nbytes for planned in placed))
        return BlockPlan(tuple(placed), scratch_bytes, end, partitions_of(self.problem, sets), bool(offsets))


def _places(sizes: Sequence[int], gap_pages: int, rng: random.Random) -> list[int]:
    """The offsets of sets of these sizes: in random order, with pages between them that belong to none."""
    cuts = sorted(rng.randint(0, gap_pages) for _ in sizes)
    order = rng.sample(range(len(sizes)), len(sizes))
    places, end = [0] * len(sizes), 0
    for cut, index in zip(cuts, order, strict=True):
        places[index] = end + cut * PAGE_BYTES
        end += sizes[index]
    return places


def _moved(plan: SetPlan, trial: int, offset: int) -> SetPlan:
    """The same tensors for another trial, elsewhere."""
    by = offset - plan.offset
    leaves = plan.leaves
    if by != 0:
        leaves = tuple(
            {name: PlacedLeaf(leaf, place + by) for name, (leaf, place) in of_rank.items()} for of_rank in leaves
        )
    return SetPlan(trial, plan.axes, offset, plan.nbytes, plan.outputs_offset + by, leaves)


def partitions_of(problem: Problem, sets: Sequence[SetPlan]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The distinct rank partitions that group arguments of any set name."""
    found: dict[Any, None] = {}
    for axes in {id(plan.axes): plan.axes for plan in sets}.values():
        for arg in problem.args:
            if isinstance(arg, Group) and (partition := axes[0][arg.axis or arg.name]) is not None:
                found[partition] = None
    return tuple(found)


def delivered_leaves(problem: Problem, ax: Axes, dialect: Dialect) -> list[Leaf]:
    """The leaves that a candidate of this dialect returns, and that are copied into the heap inside the clock."""
    return [
        leaf
        for out in problem.returned
        if dialect == "python" or (isinstance(out, Output) and out.is_returned)
        for leaf in output_leaves(out, ax)
    ]


def placed_results(
    problem: Problem, plan: SetPlan, rank: int
) -> list[tuple[Output | OutputList | InPlace, PlacedLeaf]]:
    """Every compared leaf of a rank with its output, in declared order."""
    ax, placed = plan.axes[rank], plan.leaves[rank]
    data = {arg.name: arg for arg in problem.data_args}
    pairs: list[tuple[Output | OutputList | InPlace, PlacedLeaf]] = []
    for out in problem.outputs:
        leaves = argument_leaves(data[out.name], ax) if isinstance(out, InPlace) else output_leaves(out, ax)
        pairs += [(out, placed[leaf.name]) for leaf in leaves]
    return pairs
