"""Checked calls that return to places and values of the checked block before theirs."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.compare.layout import BlockPlan, SetPlan
from pkb_gym.engine.problem.recurrence import NEW, Recurrence
from pkb_gym.engine.records.check_report import CheckReport

BOTH, VALUES = 1, 2
"""Calls of a block in which place and values of one earlier call return, and values at another place. In the others
places alone do."""


def recurring(sets: Sequence[SetPlan], earlier: BlockPlan, world_size: int) -> tuple[list[int], list[Recurrence]]:
    """Offsets in bytes of the calls of a block, and what returns in each.

    The first call lies where the last one of the earlier block did: a kernel may remember no more than one call. Two
    calls in a row never have equal values, so that what a kernel reads too early is wrong. Values return from a block
    in which all are new.

    Args:
        sets: Calls of the block, wherever they lie.
        earlier: Block before it.
        world_size: Number of ranks.
    """
    free = list(reversed(earlier.sets))
    all_new = all(one.recurrence.values_of is None for one in earlier.sets)
    unseen = list(earlier.sets) if all_new else []
    end = earlier.end
    offsets, recurrences = [], []
    for call, planned in enumerate(sets):
        alike = [one for one in unseen if one.axes is planned.axes and (call != BOTH or one in free)]
        values = alike[0] if alike and call in (BOTH, VALUES) else None
        elsewhere = [one for one in free if one is not values]
        place = values if values is not None and call == BOTH else _place(planned, elsewhere)
        if place is None:
            offset, end = end, end + planned.nbytes
        else:
            offset = place.offset
            free.remove(place)
        if values is not None:
            unseen.remove(values)
        offsets.append(offset)
        recurrences.append(
            Recurrence(
                place_of=None if place is None else place.trial,
                values_of=None if values is None else values.trial,
                whole_rank=None if values is None or world_size == 1 else planned.trial % world_size,
            )
        )
    return offsets, recurrences


def _place(planned: SetPlan, free: Sequence[SetPlan]) -> SetPlan | None:
    """The first set of the same size, or else the first larger one; None for none."""
    fitting = [one for one in free if one.nbytes >= planned.nbytes]
    return next((one for one in fitting if one.nbytes == planned.nbytes), next(iter(fitting), None))


def first_return(plan: BlockPlan, report: CheckReport) -> SetPlan | None:
    """The first call with wrong outputs, if an earlier one has returned in it."""
    first = min((mismatch.trial for mismatch in report.mismatches), default=None)
    return next((one for one in plan.sets if one.trial == first and one.recurrence != NEW), None)


def describe(planned: SetPlan) -> str:
    """A line on wrong outputs of a call that has come back to an earlier one."""
    again = planned.recurrence
    values = "other values" if again.values_of is None else f"most values of trial {again.values_of}"
    place = "other addresses" if again.place_of is None else f"the addresses of trial {again.place_of}"
    return f"trial {planned.trial} has {values} at {place}: results seem to be remembered; compute each one anew"
