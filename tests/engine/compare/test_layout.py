"""Where tensors lie in the symmetric heap."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from pkb_gym.engine.compare.layout import (
    ALIGNMENT_BYTES,
    PAGE_BYTES,
    BlockPlan,
    SetPlan,
    Workload,
    align,
    plan_set,
    rank_runs,
    rank_spec,
    result_slots,
)
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import ITEMSIZE
from pkb_gym.engine.rankside.abi import SCRATCH_OFFSET
from pkb_gym.engine.rankside.runs import unroll
from pkb_gym.problems.catalogue import catalogue, find_problem

SCRATCH = 10_000


def plan(problem: Problem, world_size: int = 4, *, timed: bool = False, trials: int = 4) -> BlockPlan:
    workload = Workload(problem, "tiny", world_size, problem.dtypes[0], "robust", b"key", 0, 0)
    return workload.plan(range(trials), timed, SCRATCH)


def ranges(planned: SetPlan, rank: int) -> list[tuple[int, int, str]]:
    """Begin, end and name of every tensor of a rank, in order."""
    return sorted(
        (slot.offset, slot.offset + slot.leaf.capacity_bytes, name) for name, slot in planned.slots[rank].items()
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_every_plan_is_sound(problem: Problem, world_size: int) -> None:
    if world_size not in problem.world_sizes:
        pytest.skip(f"{problem.name} does not run on {world_size} ranks")
    block = plan(problem, world_size)
    place = align(SCRATCH_OFFSET + SCRATCH, PAGE_BYTES)
    for planned in block.sets:
        assert planned.offset == place, "sets follow one another"
        place += planned.nbytes
        arguments_end = planned.offset
        for rank in range(world_size):
            slots = planned.slots[rank]
            for name, slot in slots.items():
                assert slot.offset % ALIGNMENT_BYTES == 0
                for other in planned.slots:
                    if name in other:
                        assert other[name].offset == slot.offset, f"{name} lies elsewhere on another rank"
            for (_, end, name), (begin, _, after) in pairwise(ranges(planned, rank)):
                assert end <= begin, f"{name} overlaps {after}"
            for begin, end, name in ranges(planned, rank):
                assert planned.offset <= begin <= end <= planned.offset + planned.nbytes, name
            for _, slot in result_slots(problem, planned, rank):
                assert slots[slot.leaf.name] is slot
            outputs = {leaf for out in problem.returned for leaf in slots if leaf.split("[")[0] == out.name}
            inputs = [slot for name, slot in slots.items() if name not in outputs]
            arguments_end = max([arguments_end, *(slot.offset + slot.leaf.capacity_bytes for slot in inputs)])
            assert all(slots[name].offset >= planned.outputs_offset for name in outputs)
        assert arguments_end <= planned.outputs_offset
        assert planned.outputs_offset % PAGE_BYTES == 0
    assert block.end == place
    assert block.end % PAGE_BYTES == 0


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
@pytest.mark.parametrize("dialect", ["native", "python"])
def test_every_rank_gets_its_arguments(problem: Problem, dialect) -> None:
    block = plan(problem)
    for planned in block.sets:
        for rank in range(4):
            spec = rank_spec(problem, block, planned, rank, dialect)
            assert (spec["offset"], spec["bytes"]) == (planned.offset, planned.nbytes)
            if dialect == "python":
                assert len(spec["args"]) == len(problem.args)
                assert [output["name"] for output in spec["outputs"]] == [out.name for out in problem.returned]
            else:
                preallocated = [out for out in problem.returned if not getattr(out, "is_returned", False)]
                assert len(spec["args"]) == len(problem.args) + len(preallocated)


def test_lists_with_none_leave_no_tensor() -> None:
    """Ranks may lack what others have; the place stays free there, and is the same elsewhere."""
    seen_none = False
    for problem in catalogue():
        block = plan(problem)
        for planned in block.sets:
            names = [set(slots) for slots in planned.slots]
            for rank in range(4):
                for arg in rank_spec(problem, block, planned, rank, "python")["args"]:
                    seen_none |= any(leaf is None for leaf in arg.get("leaves", []))
            for name in set.union(*names):
                assert len({slots[name].offset for slots in planned.slots if name in slots}) == 1, (problem.name, name)
    assert seen_none, "no problem of the catalogue has a None tensor: this test tests nothing"


def test_ragged_ranks_get_the_room_of_the_largest() -> None:
    planned = plan(find_problem("SampleSort")).sets[0]
    sizes = [slots["local_shard"].leaf.capacity for slots in planned.slots]
    assert len(set(sizes)) > 1
    after = min(slot.offset for slots in planned.slots for name, slot in slots.items() if name != "local_shard")
    assert after >= planned.offset + max(sizes) * ITEMSIZE[find_problem("SampleSort").dtypes[0]]


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_a_set_lies_as_if_it_were_planned_alone(problem: Problem) -> None:
    """Trials of equal axes share them, and only move; what they share must not be another trial's."""
    for planned in plan(problem, timed=True, trials=6).sets:
        fresh = Workload(problem, "tiny", 4, problem.dtypes[0], "robust", b"key", 0, 0)
        assert planned == plan_set(problem, planned.trial, fresh.axes(planned.trial, True), planned.offset)


def test_equal_workloads_plan_alike_and_others_do_not() -> None:
    """The evaluator and every reference rank plan for themselves."""
    problem = find_problem("KJTAllToAll")
    assert plan(problem) == plan(problem)
    other = Workload(problem, "tiny", 4, problem.dtypes[0], "robust", b"another key", 0, 0).plan(
        range(4), False, SCRATCH
    )
    assert other != plan(problem)


@pytest.mark.parametrize(("offset", "aligned"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_align(offset: int, aligned: int) -> None:
    assert align(offset) == aligned


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
@pytest.mark.parametrize("dialect", ["native", "python"])
def test_runs_unroll_to_the_sets(problem: Problem, dialect) -> None:
    """As they travel: told once where trials are alike, each for itself where they differ."""
    for timed in (False, True):
        block = plan(problem, timed=timed, trials=3)
        for rank in range(4):
            runs = json.loads(json.dumps(rank_runs(problem, block, rank, dialect)))
            specs = [rank_spec(problem, block, planned, rank, dialect) for planned in block.sets]
            assert unroll(runs) == json.loads(json.dumps(specs))
            assert sum(run["calls"] for run in runs) == len(specs)
