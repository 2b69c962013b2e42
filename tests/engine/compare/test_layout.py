"""Where tensors lie in the symmetric heap."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pkb_gym.engine.compare.layout import (
    ALIGNMENT_BYTES,
    PAGE_BYTES,
    SetPlan,
    Workload,
    align,
    placed_results,
    plan_set,
)
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import ITEMSIZE
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire.abi import SCRATCH_OFFSET
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.engine.compare.plans import SCRATCH_BYTES, plan
from tests.whole_tables import sampled


def ranges(planned: SetPlan, rank: int) -> list[tuple[int, int, str]]:
    """Begin, end and name of every tensor of a rank, in order."""
    return sorted(
        (placed.offset, placed.offset + placed.leaf.capacity_bytes, name)
        for name, placed in planned.leaves[rank].items()
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("problem", sampled(catalogue(), 4), ids=lambda problem: problem.name)
def test_every_plan_is_sound(problem: Problem, world_size: int) -> None:
    if world_size not in problem.world_sizes:
        pytest.skip(f"{problem.name} does not run on {world_size} ranks")
    block = plan(problem, world_size)
    place = align(SCRATCH_OFFSET + SCRATCH_BYTES, PAGE_BYTES)
    for planned in sorted(block.sets, key=lambda planned: planned.offset):
        assert planned.offset == place, "sets fill the segment, in any order"
        place += planned.nbytes
        arguments_end = planned.offset
        for rank in range(world_size):
            leaves = planned.leaves[rank]
            for name, placed in leaves.items():
                assert placed.offset % ALIGNMENT_BYTES == 0
                for other in planned.leaves:
                    if name in other:
                        assert other[name].offset == placed.offset, f"{name} lies elsewhere on another rank"
            for (_, end, name), (begin, _, after) in pairwise(ranges(planned, rank)):
                assert end <= begin, f"{name} overlaps {after}"
            for begin, end, name in ranges(planned, rank):
                assert planned.offset <= begin <= end <= planned.offset + planned.nbytes, name
            for _, placed in placed_results(problem, planned, rank):
                assert leaves[placed.leaf.name] is placed
            outputs = {leaf for out in problem.returned for leaf in leaves if leaf.split("[")[0] == out.name}
            inputs = [placed for name, placed in leaves.items() if name not in outputs]
            arguments_end = max([arguments_end, *(placed.offset + placed.leaf.capacity_bytes for placed in inputs)])
            assert all(leaves[name].offset >= planned.outputs_offset for name in outputs)
        assert arguments_end <= planned.outputs_offset
        assert planned.outputs_offset % PAGE_BYTES == 0
    assert block.end == place
    assert block.end % PAGE_BYTES == 0


def test_places_of_sets_are_drawn_with_gaps_between_them() -> None:
    """So that no call can predict the place of the next one's tensors."""
    workload = Workload(find_problem("AllReduce"), "tiny", 2, "bfloat16", "robust", b"key", 0, 0)
    segment_bytes = 4 << 20
    blocks = [workload.plan(range(first, first + 6), True, SCRATCH_BYTES, segment_bytes) for first in (0, 6, 12)]
    for block in blocks:
        placed = sorted(block.sets, key=lambda planned: planned.offset)
        assert [planned.trial for planned in block.sets] == list(range(block.sets[0].trial, block.sets[0].trial + 6))
        gaps = [after.offset - before.offset - before.nbytes for before, after in pairwise(placed)]
        assert all(gap >= 0 and gap % PAGE_BYTES == 0 for gap in gaps) and any(gaps)
        assert block.end <= segment_bytes
    orders = {tuple(sorted(range(6), key=lambda call: block.sets[call].offset)) for block in blocks}
    assert len(orders) > 1
    again = workload.plan(range(6), True, SCRATCH_BYTES, segment_bytes)
    assert again == blocks[0], "the key fixes them"


def test_ragged_ranks_get_the_room_of_the_largest() -> None:
    planned = plan(find_problem("SampleSort")).sets[0]
    sizes = [leaves["local_shard"].leaf.capacity for leaves in planned.leaves]
    assert len(set(sizes)) > 1
    after = min(leaf.offset for leaves in planned.leaves for name, leaf in leaves.items() if name != "local_shard")
    assert after >= planned.offset + max(sizes) * ITEMSIZE[find_problem("SampleSort").dtypes[0]]


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 1), ids=lambda problem: problem.name)
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
        range(4), False, SCRATCH_BYTES
    )
    assert other != plan(problem)


@pytest.mark.parametrize(("offset", "aligned"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_align(offset: int, aligned: int) -> None:
    assert align(offset) == aligned


def test_timed_inputs_are_of_each_source_and_checked_ones_of_all() -> None:
    """A source wrote its inputs and results to its output, and the next one looked them up: 36 times as fast."""
    one, other = (
        Workload(find_problem("AllReduce"), "tiny", 2, "bfloat16", "robust", b"key", 0, 0, source_sha256=digest)
        for digest in ("1" * 64, "2" * 64)
    )
    for trial in (0, 7):
        assert one.trial_key(trial, False) == other.trial_key(trial, False)
        assert one.trial_key(trial, True) != other.trial_key(trial, True)
        assert one.trial_key(trial, True).derive_seed("x") != one.trial_key(trial, False).derive_seed("x")
    there = WorkloadSpec.of(one).load()
    assert there.trial_key(3, True) == one.trial_key(3, True), "the reference gang draws them alike"
