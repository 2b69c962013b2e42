"""Checked calls come back to addresses with new values, and to values that were seen before."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pkb_gym.engine.compare.layout import BlockPlan, Workload
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.recurrence import Recurrence
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.stages.recurring_calls import BOTH, VALUES, describe, first_return, recurring
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.engine.records.mismatches import mismatch
from tests.whole_tables import sampled

SCRATCH_BYTES, SEGMENT_BYTES = 1 << 20, 1 << 30


def returning(problem: Problem, world_size: int, first: int = 5, calls: int = 4) -> tuple[BlockPlan, BlockPlan]:
    """A block of so many first calls, and the calls that return to it."""
    workload = Workload(problem, "tiny", world_size, problem.dtypes[0], "robust", b"key", 0, 0)
    earlier = workload.plan(range(first), False, SCRATCH_BYTES, SEGMENT_BYTES)
    return earlier, again(workload, earlier, calls)


def again(workload: Workload, earlier: BlockPlan, calls: int) -> BlockPlan:
    next_trial = earlier.sets[-1].trial + 1
    trials = range(next_trial, next_trial + calls)
    drawn = workload.plan(trials, False, SCRATCH_BYTES, SEGMENT_BYTES)
    offsets, recurrences = recurring(drawn.sets, earlier, workload.world_size)
    return workload.plan(trials, False, SCRATCH_BYTES, SEGMENT_BYTES, offsets, recurrences)


def test_places_return_with_new_values_values_at_other_places_and_both() -> None:
    earlier, plan = returning(find_problem("AllReduce"), 2)
    of_place = {planned.offset: planned.trial for planned in earlier.sets}
    assert len({planned.offset for planned in plan.sets}) == 4
    assert [of_place[planned.offset] for planned in plan.sets] == [one.recurrence.place_of for one in plan.sets]
    places, both, values, last = (planned.recurrence for planned in plan.sets)
    assert places == Recurrence(place_of=4), "the call just before it"
    assert both.place_of == both.values_of is not None
    assert values.values_of not in (None, both.values_of, values.place_of)
    assert last.values_of is None and last.place_of is not None
    assert [planned.recurrence.whole_rank for planned in plan.sets] == [None, 0, 1, None]
    (alone,) = {planned.recurrence.whole_rank for planned in returning(find_problem("AllReduce"), 1)[1].sets}
    assert alone is None, "one rank has no peers whose values could be new"


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 1), ids=lambda problem: problem.name)
def test_calls_of_a_block_never_overlap_and_have_their_own_axes(problem: Problem) -> None:
    earlier, plan = returning(problem, 4)
    fresh = Workload(problem, "tiny", 4, problem.dtypes[0], "robust", b"key", 0, 0)
    placed = sorted(plan.sets, key=lambda planned: planned.offset)
    assert all(one.offset + one.nbytes <= other.offset for one, other in pairwise(placed))
    assert plan.end == placed[-1].offset + placed[-1].nbytes
    assert all(planned.axes == fresh.axes(planned.trial, False) for planned in plan.sets)
    axes = {planned.trial: planned.axes for planned in earlier.sets}
    for planned in plan.sets:
        values_of = planned.recurrence.values_of
        assert values_of is None or axes[values_of] == planned.axes
    assert any(planned.recurrence.place_of is not None for planned in plan.sets)


def test_a_call_without_a_place_to_return_to_lies_behind_all_others() -> None:
    earlier, plan = returning(find_problem("AllReduce"), 2, first=2)
    behind = [planned for planned in plan.sets if planned.recurrence.place_of is None]
    assert len(behind) == 2 and all(planned.offset >= earlier.end for planned in behind)


def test_values_return_from_a_block_alone_in_which_all_were_new() -> None:
    """What a call had of an earlier one was never its trial's own."""
    problem = find_problem("AllReduce")
    workload = Workload(problem, "tiny", 2, problem.dtypes[0], "robust", b"key", 0, 0)
    blocks = [workload.plan(range(3), False, SCRATCH_BYTES, SEGMENT_BYTES)]
    for _ in range(3):
        blocks.append(again(workload, blocks[-1], 3))
    returned = [[planned.recurrence.values_of is not None for planned in block.sets] for block in blocks]
    assert returned == [[False] * 3, [call in (BOTH, VALUES) for call in range(3)], [False] * 3, returned[1]]


def test_the_first_wrong_call_says_what_returned_in_it() -> None:
    _, plan = returning(find_problem("AllReduce"), 2)
    trials = [planned.trial for planned in plan.sets]

    def found(*wrong: int) -> str:
        report = CheckReport(
            trials=4,
            outputs_compared=8,
            outputs_right=7,
            elements_compared=64,
            elements_right=60,
            mismatches=tuple(mismatch(trial=trial) for trial in wrong),
        )
        planned = first_return(plan, report)
        return "" if planned is None else describe(planned).partition(":")[0]

    place, both = plan.sets[0].recurrence.place_of, plan.sets[1].recurrence.values_of
    assert found(trials[1], trials[0]) == f"trial {trials[0]} has other values at the addresses of trial {place}"
    assert found(trials[1]) == f"trial {trials[1]} has most values of trial {both} at the addresses of trial {both}"
    assert found() == found(99) == ""
