"""The size of the heap, and what an evaluation takes of memory: known before anything is allocated."""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.compare.layout import PAGE_BYTES, Workload
from pkb_gym.engine.errors import InfrastructureError, SizeError
from pkb_gym.engine.problem import Axes, AxisValue, Draw, Problem
from pkb_gym.engine.stages.heap_layout import (
    CPU_BLOCK_BYTES,
    CPU_RESERVE_BYTES,
    GPU_BLOCK_BYTES,
    GPU_RESERVE_BYTES,
    MIN_CHECKED_CALLS,
    MIN_SCRATCH_BYTES,
    VARIATION,
    HeapLayout,
    lay_out,
)
from pkb_gym.engine.stages.timing_statistics import MAX_CALLS
from pkb_gym.engine.wire.abi import MAX_RANKS
from pkb_gym.problems.catalogue import find_problem
from tests.engine.stages.fake_gangs import PROBLEM, builder


def workload(world_size: int = 2, size: str = "tiny", problem: Problem = PROBLEM) -> Workload:
    return Workload(problem, size, world_size, "bfloat16", "robust", b"key", 0, 0)


@pytest.mark.parametrize(("gpus", "trials"), [(0, 4), (0, 2 * MAX_CALLS["cpu"]), (2, 4)])
def test_a_heap_has_room_for_every_checked_call_and_the_longest_block(gpus: int, trials: int) -> None:
    longest = MAX_CALLS["cuda" if gpus else "cpu"]
    layout = lay_out(PROBLEM, builder(gpus=gpus, trials=trials).config)
    assert layout.scratch_bytes == MIN_SCRATCH_BYTES and layout.segment_bytes % PAGE_BYTES == 0
    checked = workload().plan(range(trials), False, layout.scratch_bytes)
    timed = workload().plan(range(longest), True, layout.scratch_bytes)
    assert max(checked.end, timed.end) <= layout.segment_bytes
    assert layout.most_calls >= longest, "tiny calls do not fill the room of a block"


@pytest.mark.parametrize(("gpus", "room"), [(0, CPU_BLOCK_BYTES // 2), (2, GPU_BLOCK_BYTES)])
def test_large_calls_share_the_room_of_a_block(gpus: int, room: int) -> None:
    """On the CPU it is of all ranks together."""
    (planned,) = workload(size="large").plan([0], True, 0).sets
    layout = lay_out(PROBLEM, builder(gpus=gpus, size="large").config)
    tensors_bytes = sum(placed.leaf.capacity_bytes for placed in planned.leaves[0].values())
    assert layout.most_calls == room // tensors_bytes > 1, "red zones cost a call"
    assert layout.scratch_bytes >= 2 * planned.nbytes
    assert layout.segment_bytes >= layout.scratch_bytes + layout.most_calls * planned.nbytes


def test_ranks_that_share_a_gpu_share_its_memory() -> None:
    alone, shared = (lay_out(PROBLEM, builder(gpus=2, size="large", ranks_per_gpu=each).config) for each in (1, 2))
    assert shared.most_calls == alone.most_calls // 2, "a block's room is that of the GPU"
    assert shared.memory_bytes > 2 * 2 * shared.segment_bytes + GPU_RESERVE_BYTES
    assert shared.memory_bytes < 2 * (alone.memory_bytes - GPU_RESERVE_BYTES) + GPU_RESERVE_BYTES


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    return {"N": ax.N * (8 if draw.trial == 5 and not draw.timed else 1)}


def test_sizes_that_differ_get_the_room_of_the_largest_and_a_quarter_more() -> None:
    """The heap was laid out for the first trials alone, and a later one ended the evaluation."""
    growing = dataclasses.replace(PROBLEM, robust=dataclasses.replace(PROBLEM.robust, vary=vary))
    sets = workload(size="large", problem=growing).plan(range(6), False, 0).sets
    largest = sets[5].nbytes
    assert largest > 7 * sets[0].nbytes
    layout = lay_out(growing, builder(problem=growing, size="large", trials=6).config)
    assert layout.segment_bytes - layout.scratch_bytes >= MIN_CHECKED_CALLS * (largest + largest // VARIATION)


def fail_once(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    return {"N": ax.N // (0 if draw.trial == 5 else 1)}


def test_a_later_trial_that_cannot_be_drawn_is_an_error_of_the_size() -> None:
    failing = dataclasses.replace(PROBLEM, robust=dataclasses.replace(PROBLEM.robust, vary=fail_once))
    config = builder(problem=failing, trials=6).config
    with pytest.raises(ZeroDivisionError):  # of a declared size: the declaration's fault
        lay_out(failing, config)
    size = dict(failing.sizes["tiny"])
    with pytest.raises(SizeError, match="do not fit together"):
        lay_out(failing, config.model_copy(update={"size": size}))
    with pytest.raises(SizeError, match="do not fit together"):
        dataclasses.replace(workload(problem=failing), size=size).axes(5, False)


def test_a_layout_is_of_the_declaration_and_the_configuration_alone() -> None:
    """What a machine needs is the same for every evaluation, so that it is known beforehand."""
    problem = find_problem("MoEDispatch")
    first, second = (lay_out(problem, builder(problem=problem, seed=seed).config) for seed in (0, 1))
    assert first == second
    axes: dict[str, object] = dict(problem.sizes["tiny"]) | {"T": 48}
    of_axes = lay_out(problem, builder(problem=problem, size=axes).config)
    assert isinstance(of_axes, HeapLayout)


def test_memory_holds_both_heaps() -> None:
    on_gpus = lay_out(PROBLEM, builder(gpus=2, size="large").config)
    assert on_gpus.memory_bytes > 2 * on_gpus.segment_bytes + GPU_RESERVE_BYTES
    on_cpu = lay_out(PROBLEM, builder(size="large").config)
    blocks = on_cpu.segment_bytes - on_cpu.scratch_bytes - (1 << 20)
    assert on_cpu.memory_bytes > 2 * 2 * (blocks - PAGE_BYTES) + CPU_RESERVE_BYTES


def test_more_ranks_than_a_kernel_can_be_passed() -> None:
    many = dataclasses.replace(PROBLEM, world_sizes=(4, 2 * MAX_RANKS))
    config = builder(problem=many, world_size=2 * MAX_RANKS).config
    with pytest.raises(InfrastructureError, match=f"more than {MAX_RANKS} ranks"):
        lay_out(many, config)
