"""Which lines are withheld, poisoned and sampled at the handovers of a block."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.compare.layout import PAGE_BYTES, BlockPlan, Workload, placed_results
from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference.decoys import draw_decoys
from pkb_gym.engine.reference.handover_script import (
    ARRIVALS,
    LINE_BYTES,
    POISONS,
    RECEIPTS,
    WHOLE_LINES,
    CallLines,
    Script,
    _share_out,
    null_script,
    put_lines,
    write_script,
)
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.whole_tables import sampled

RANK, WORLD_SIZE, CALLS = 1, 2, 6


def block(name: str, calls: int = CALLS) -> tuple[BlockPlan, Heap]:
    """A block of a problem, and a heap that holds a different number in each byte of a line's neighbourhood."""
    problem = find_problem(name)
    workload = Workload(problem, "tiny", WORLD_SIZE, problem.dtypes[0], "robust", b"key", 0, 0)
    plan = workload.plan(range(calls), True, 0)
    end = -(-plan.end // PAGE_BYTES) * PAGE_BYTES
    heap = Heap(sealed_memory("test", WORLD_SIZE * end), end, WORLD_SIZE, RANK)
    heap.bytes().copy_(torch.arange(end) % 251)
    return plan, heap


def script(name: str, seed: int = 0, calls: int = CALLS) -> tuple[Script, BlockPlan, Heap]:
    plan, heap = block(name, calls)
    return write_script(find_problem(name), plan, RANK, heap, seed), plan, heap


def lines_of_call(lines: CallLines, call: int) -> set[int]:
    return set(lines.lines[lines.begin[call] : lines.begin[call + 1]].tolist())


def lines_of_tensor(offset: int, nbytes: int) -> set[int]:
    return set(range(offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES)))


@pytest.mark.parametrize("problem", sampled(catalogue(), 4), ids=lambda problem: problem.name)
def test_every_argument_of_every_call_is_withheld_in_part_and_every_result_sampled(problem):
    found, plan, _ = script(problem.name)
    for call, planned in enumerate(plan.sets):
        placed = planned.leaves[RANK]
        leaves = [placed[leaf.name] for arg in problem.data_args for leaf in argument_leaves(arg, planned.axes[RANK])]
        inside = [leaf for leaf in leaves if leaf.leaf.capacity_bytes]
        withheld = lines_of_call(found.arrivals, call)
        own = set().union(*(lines_of_tensor(leaf.offset, leaf.leaf.capacity_bytes) for leaf in inside))
        assert withheld <= own, "lines of other tensors, or of nothing"
        touched = [leaf for leaf in inside if withheld & lines_of_tensor(leaf.offset, leaf.leaf.capacity_bytes)]
        assert len(touched) == min(len(inside), ARRIVALS)
        results = [leaf for _, leaf in placed_results(problem, planned, RANK) if leaf.leaf.capacity_bytes]
        sampled = lines_of_call(found.receipts, call)
        seen = [leaf for leaf in results if sampled & lines_of_tensor(leaf.offset, leaf.leaf.capacity_bytes)]
        assert len(seen) == min(len(results), RECEIPTS)
        poisoned = lines_of_call(found.poisons, call)
        assert all(line * LINE_BYTES >= planned.outputs_offset for line in poisoned), "an argument is poisoned"


def test_a_script_needs_no_room_for_the_lines_that_it_leaves_out():
    """Drawing a few of a large tensor's lines took a number for each line of each call."""
    problem, calls = find_problem("AllReduce"), 64
    tensor_lines = 1 << 14
    elements = tensor_lines * LINE_BYTES // 2
    workload = Workload(problem, {"M": elements // 1024, "N": 1024}, WORLD_SIZE, "bfloat16", "robust", b"key", 0, 0)
    plan = workload.plan(range(calls), True, 0)
    end = -(-plan.end // PAGE_BYTES) * PAGE_BYTES
    heap = Heap(sealed_memory("test", WORLD_SIZE * end), end, WORLD_SIZE, RANK)
    tracemalloc.start()
    try:
        write_script(problem, plan, RANK, heap, 0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < tensor_lines * calls


def test_no_call_has_more_lines_than_a_message_holds():
    for problem in catalogue():
        found, _, _ = script(problem.name)
        for lines, most in ((found.arrivals, ARRIVALS), (found.poisons, POISONS), (found.receipts, RECEIPTS)):
            assert np.diff(lines.begin).max(initial=0) <= most, problem.name


def test_lines_differ_from_call_to_call_and_from_seed_to_seed():
    found, plan, _ = script("HyenaCP")
    relative = [
        frozenset(line - planned.offset // LINE_BYTES for line in lines_of_call(found.arrivals, call))
        for call, planned in enumerate(plan.sets)
    ]
    assert len(set(relative)) > 1
    assert set(script("HyenaCP", seed=1)[0].arrivals.lines) != set(found.arrivals.lines)


def test_arguments_that_a_call_may_overwrite_are_not_withdrawn():
    """After it they hold its result; a withdrawal would wipe that out before it is compared."""
    found, plan, _ = script("ClipGradNorm")
    for call, planned in enumerate(plan.sets):
        placed = planned.leaves[RANK]
        mutable = set()
        for arg in find_problem("ClipGradNorm").data_args:
            for leaf in argument_leaves(arg, planned.axes[RANK]) if getattr(arg, "mutable", False) else ():
                mutable |= lines_of_tensor(placed[leaf.name].offset, leaf.capacity_bytes)
        begin, count = found.arrivals.begin[call], found.withdrawals[call]
        withdrawn = set(found.arrivals.lines[begin : begin + count].tolist())
        kept = lines_of_call(found.arrivals, call) - withdrawn
        assert mutable, "the problem has none"
        assert not withdrawn & mutable and kept and kept <= mutable


def test_values_are_those_of_the_heap_and_decoys_are_not():
    found, _, heap = script("AllReduce")
    rows = heap.bytes().view(-1, LINE_BYTES).numpy()
    assert (found.values == rows[found.arrivals.lines]).all()
    assert not (found.decoys == found.values).all(axis=1).any()


@pytest.mark.parametrize("name", ["UlyssesAllGather", "SampleSort", "GradAccLoss", "AllReduce"])
def test_no_decoy_hands_over_what_a_call_holds(name):
    """Tensors that are withheld whole would be known before their time."""
    plan, heap = block(name, calls=16)
    heap.bytes().copy_(torch.randint(0, 255, heap.bytes().shape, dtype=torch.uint8))
    found = write_script(find_problem(name), plan, RANK, heap, 0)
    values = {bytes(value) for value in found.values}
    assert not any(bytes(decoy) in values for decoy in found.decoys if (decoy != POISON).any())


@pytest.mark.parametrize(
    ("dtype", "drawn"), [("float32", 0xFFF), ("bfloat16", 0xF), ("complex64", 0xFFF), ("int64", 0)]
)
def test_decoys_are_elements_of_the_tensor_but_for_bits_that_are_drawn(dtype, drawn):
    """A constant poison would show a kernel which lines it has to wait for, and wild indices would end it."""
    words = np.uint64 if dtype == "int64" else np.uint16 if dtype == "bfloat16" else np.uint32
    rng = np.random.default_rng(0)
    lines = rng.integers(0, 256, (12, LINE_BYTES), np.uint8)
    decoys = draw_decoys(dtype, lines, np.full(12, LINE_BYTES), rng)
    kept = {int(word) & ~drawn for word in lines.view(words).ravel()}
    assert {int(word) & ~drawn for word in decoys.view(words).ravel()} <= kept
    assert (decoys != lines).any()
    whole = set(lines.view(words).ravel().tolist())
    assert (set(decoys.view(words).ravel().tolist()) <= whole) == (drawn == 0)


def test_decoys_of_whole_numbers_in_a_float_tensor_are_whole_numbers():
    lines = np.random.default_rng(0).integers(0, 9, (6, 16)).astype(np.float32).view(np.uint8)
    decoys = draw_decoys("float32", lines, np.full(6, LINE_BYTES), np.random.default_rng(1))
    assert set(decoys.view(np.float32).ravel().tolist()) <= set(range(9))


def test_bytes_behind_a_tensor_are_in_no_decoy_and_stay():
    lines = np.random.default_rng(0).integers(0, 100, (2, LINE_BYTES), np.uint8)
    lines[1, 8:] = 200
    decoys = draw_decoys("uint8", lines, np.array([LINE_BYTES, 8]), np.random.default_rng(1))
    assert (decoys[1, 8:] == 200).all() and (decoys[0] < 100).all() and (decoys[1, :8] < 100).all()


def test_a_number_that_is_the_same_in_all_calls_has_poison_for_a_decoy():
    plan, heap = block("GradAccLoss")
    heap.bytes().fill_(1)
    found = write_script(find_problem("GradAccLoss"), plan, RANK, heap, 0)
    assert (found.decoys == POISON).all()


def test_delays_of_calls_that_the_block_does_not_have_are_dropped():
    plan, heap = block("AllReduce", calls=2)
    found = write_script(find_problem("AllReduce"), plan, RANK, heap, 0)
    assert found.late_by(()) is found and found.delays_us.tolist() == [0, 0]
    assert found.late_by((5, 6, 7)).delays_us.tolist() == [5, 6]


def test_withdrawn_lines_come_with_what_they_held():
    found, _, heap = script("AllGatherGemm")
    lines, values = found.withdrawn()
    before = heap.bytes().clone()
    put_lines(heap, lines, np.full_like(values, POISON))
    assert not (heap.bytes() == before).all()
    put_lines(heap, lines, values)
    assert (heap.bytes() == before).all()


def test_a_null_script_stays_within_its_set_and_has_as_many_lines_as_any_call():
    plan, _ = block("AllReduce")
    planned = plan.sets[0]
    found = null_script(planned, 3)
    assert found.calls == 3
    assert np.diff(found.arrivals.begin).tolist() == [ARRIVALS] * 3
    for lines in (found.arrivals, found.poisons, found.receipts):
        inside = lines.lines.astype(int) * LINE_BYTES
        assert (inside >= planned.offset).all() and (inside < planned.offset + planned.nbytes).all()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_lines_are_shared_out_whole_for_small_tensors_and_evenly_for_large_ones(sizes):
    counts = _share_out(np.array(sizes), ARRIVALS)
    assert counts.sum() <= ARRIVALS and (counts <= sizes).all() and (counts >= 1).all()
    assert counts.sum() == min(ARRIVALS, sum(sizes)), "room is left"
    if sum(min(size, WHOLE_LINES) for size in sizes) <= ARRIVALS:
        assert all(count == size for count, size in zip(counts, sizes, strict=True) if size <= WHOLE_LINES)
