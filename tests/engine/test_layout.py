"""Where tensors lie in the heap: one offset on all ranks, no overlap, whatever is ragged."""

from __future__ import annotations

import pytest

from pkb_gym.engine.layout import ALIGNMENT_BYTES, PAGE_BYTES, Workload, delivered_leaves, rank_spec
from pkb_gym.problems.catalogue import catalogue, find_problem

CATALOGUE = catalogue()


def workload(problem, world_size: int = 4, size="tiny") -> Workload:
    return Workload(problem, size, world_size, problem.dtypes[0], "robust", b"key", seed=0, turn=0)


@pytest.mark.parametrize("problem", CATALOGUE, ids=lambda problem: problem.name)
def test_tensors_lie_alike_on_all_ranks_and_apart(problem):
    block = workload(problem).plan(range(6), False, scratch_bytes=4096)
    end = 0
    for planned in block.sets:
        assert planned.offset >= end, "calls do not share memory"
        end = planned.offset + planned.nbytes
        offsets: dict[str, int] = {}
        for slots in planned.slots:
            for name, slot in slots.items():
                assert offsets.setdefault(name, slot.offset) == slot.offset, f"{name} moves between ranks"
                assert slot.offset % ALIGNMENT_BYTES == 0
            ranges = sorted((slot.offset, slot.offset + slot.leaf.capacity_bytes) for slot in slots.values())
            assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:], strict=False)), "tensors overlap"
            assert not ranges or (planned.offset <= ranges[0][0] and ranges[-1][1] <= end)
        assert planned.outputs_offset % PAGE_BYTES == 0
    assert block.end >= end


@pytest.mark.parametrize("problem", CATALOGUE, ids=lambda problem: problem.name)
def test_a_native_call_has_every_parameter_of_the_signature(problem):
    from pkb_gym.engine.signature import cpp_signature

    parameters = cpp_signature(problem).count(" // ") - 1  # the communicator is added by the rank program
    block = workload(problem, world_size=2).plan(range(4), False, 4096)
    for planned in block.sets:
        for rank in range(2):
            spec = rank_spec(problem, block, planned, rank, "native")
            handed = sum(len(arg["leaves"]) if arg["kind"] == "linear" else 1 for arg in spec["args"])
            assert handed == parameters


def test_a_list_keeps_its_holes():
    problem = find_problem("ClipGradNormEP")
    block = workload(problem).plan(range(8), False, 4096)
    lists = [
        arg["leaves"]
        for planned in block.sets
        for arg in rank_spec(problem, block, planned, 0, "native")["args"]
        if arg["kind"] == "list"
    ]
    assert any(slot is None for leaves in lists for slot in leaves)
    assert any(slot is not None for leaves in lists for slot in leaves)


def test_what_is_delivered_depends_on_the_dialect():
    sort, ragged = find_problem("SampleSort"), find_problem("KJTAllToAll")
    ax = workload(sort).axes(0, True)[0]
    assert delivered_leaves(sort, ax, "native") == []
    assert [leaf.owner for leaf in delivered_leaves(sort, ax, "python")] == [sort.returned[0].name]
    ax = workload(ragged).axes(0, True)[0]
    assert delivered_leaves(ragged, ax, "native"), "outputs of unknown size are returned, and copied"


def test_the_same_key_plans_the_same_trials_and_another_does_not():
    problem = find_problem("SampleSort")
    one, again = workload(problem), workload(problem)
    other = Workload(problem, "tiny", 4, problem.dtypes[0], "robust", b"other key", seed=0, turn=0)
    trials = range(8)
    assert [one.axes(t, False) for t in trials] == [again.axes(t, False) for t in trials]
    assert [one.axes(t, False) for t in trials] != [other.axes(t, False) for t in trials]
