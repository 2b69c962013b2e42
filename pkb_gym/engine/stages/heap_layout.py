"""The size of the symmetric heap of an evaluation, and the evaluation's need of the machine's memory.

Computed from declared shapes; nothing is allocated. A heap is laid out before the evaluation's inputs are known, from
trials of a fixed key, so that it depends on the problem and the configuration alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pkb_gym.engine.compare.layout import PAGE_BYTES, SetPlan, Workload, align, partitions_of, plan_set
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.problem import Axes, Problem
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.records.config import Device, Protocol, ResolvedConfig
from pkb_gym.engine.stages.timing_statistics import MAX_CALLS
from pkb_gym.engine.wire.abi import MAX_GROUPS, MAX_RANKS

CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 512 << 20, 2 << 30
"""Room for the argument sets of one block: of all ranks together, which share a memory, or of each GPU."""

ZONES_SHARE = 64
"""The inverse of what red zones may add to that room, so that sets of round sizes are as many as without."""

MIN_SCRATCH_BYTES = 16 << 20

MIN_CHECKED_CALLS = 3
"""The least number of calls in a block, so that one call's delays meet those of the next."""

TIMED_TRIALS = 2
"""Timed trials that are laid out; their sizes differ little."""

VARIATION = 4
"""Inverse of the room for larger sets, where sizes differ from trial to trial: a quarter."""

GPU_RESERVE_BYTES, CPU_RESERVE_BYTES = 4 << 30, 1 << 30
"""Memory beside the heaps: contexts of the gangs that stand by, NCCL's buffers, working memory of baseline and
rules."""


@dataclass(frozen=True)
class HeapLayout:
    """The division of a heap.

    Attributes:
        scratch_bytes: Size of the symmetric scratch of each rank, in bytes.
        segment_bytes: Size of each rank's segment, scratch included, in bytes.
        most_calls: Maximum number of calls in a timed block.
        memory_bytes: Memory that the evaluation needs, in bytes: of each GPU, or main memory for all ranks.
    """

    scratch_bytes: int
    segment_bytes: int
    most_calls: int
    memory_bytes: int


def lay_out(problem: Problem, config: ResolvedConfig) -> HeapLayout:
    """Sizes the heap: scratch by the size of one call's tensors, then as many calls as fit the room for a block.

    At least `MIN_CHECKED_CALLS` fit, whatever their size.

    Raises:
        SizeError: the axes of a trial do not fit together.
        InfrastructureError: there are more ranks or groups than `pkb::Comm` has room for.
    """
    size = config.size_argument
    named = size if isinstance(size, str) else tuple(sorted(size.items()))
    with problem.fitting_axes(size):
        return _lay_out(
            problem,
            named,
            config.world_size,
            config.ranks_per_gpu,
            config.dtype,
            config.protocol,
            config.host_device,
            config.trials,
        )


@lru_cache(maxsize=512)
def _lay_out(
    problem: Problem,
    size: str | tuple[tuple[str, object], ...],
    world_size: int,
    ranks_per_gpu: int,
    dtype: str,
    protocol: Protocol,
    device: Device,
    trials: int,
) -> HeapLayout:
    named = size if isinstance(size, str) else dict(size)
    workload = Workload(problem, named, world_size, dtype, protocol, b"heap layout", seed=0, turn=0)  # type: ignore[arg-type]
    checked = _distinct_sets(workload, trials, timed=False)
    timed = _distinct_sets(workload, TIMED_TRIALS, timed=True)
    if world_size > MAX_RANKS or any(len(partitions_of(problem, [plan])) > MAX_GROUPS for plan in checked + timed):
        raise InfrastructureError(f"{problem.name}: more than {MAX_RANKS} ranks, or {MAX_GROUPS} groups in one call")
    largest_checked = _with_variation([plan.nbytes for plan in checked])
    largest_timed = _with_variation([plan.nbytes for plan in timed])
    one = timed[0]
    scratch_bytes = align(max(MIN_SCRATCH_BYTES, 2 * (one.nbytes - _resident_bytes(problem, one))), PAGE_BYTES)
    room = GPU_BLOCK_BYTES // ranks_per_gpu if device == "cuda" else CPU_BLOCK_BYTES // world_size
    most_calls = max(1, (room + room // ZONES_SHARE) // (one.nbytes or 1))
    # Pages in between belong to the gaps.
    few_checked = min(MIN_CHECKED_CALLS, trials) * (largest_checked + PAGE_BYTES)
    all_checked = trials * (largest_checked + PAGE_BYTES)
    timed_block = min(most_calls, MAX_CALLS[device]) * (largest_timed + PAGE_BYTES)
    block_bytes = max(min(all_checked, room), few_checked, timed_block)
    segment_bytes = align(scratch_bytes + block_bytes + (1 << 20), PAGE_BYTES)
    drawn = max(largest_checked, largest_timed)
    kept = _share_kept(problem, one) * block_bytes
    if device == "cuda":
        memory_bytes = ranks_per_gpu * (2 * segment_bytes + drawn + kept) + GPU_RESERVE_BYTES
    else:  # pages of main memory exist once they are touched, and few kernels touch the scratch
        memory_bytes = world_size * (2 * block_bytes + drawn + kept) + CPU_RESERVE_BYTES
    return HeapLayout(scratch_bytes, segment_bytes, most_calls, int(memory_bytes))


def _distinct_sets(workload: Workload, trials: int, *, timed: bool) -> list[SetPlan]:
    """One call each, in order of trials: of those with the same axes, only the first."""
    first: dict[int, tuple[int, tuple[Axes, ...]]] = {}
    for trial in range(trials):
        axes = workload.axes(trial, timed)
        first.setdefault(id(axes), (trial, axes))
    return [plan_set(workload.problem, trial, axes, 0) for trial, axes in first.values()]


def _with_variation(sizes: list[int]) -> int:
    """The largest, and a margin where they differ."""
    largest = max(sizes)
    return largest if min(sizes) == largest else align(largest + largest // VARIATION, PAGE_BYTES)


def _resident_bytes(problem: Problem, plan: SetPlan) -> int:
    """The bytes of the arguments that no kernel copies, for the rank that has most of them."""
    resident = [arg for arg in problem.data_args if arg.resident is not None]
    return max(sum(leaf.capacity_bytes for arg in resident for leaf in argument_leaves(arg, ax)) for ax in plan.axes)


def _share_kept(problem: Problem, plan: SetPlan) -> float:
    """The share of a set that the reference gang holds once more: outputs, and arguments that are overwritten."""
    mutable = {arg.name for arg in problem.data_args if getattr(arg, "mutable", False)}
    arguments = {arg.name for arg in problem.data_args}
    return max(
        sum(
            placed.leaf.capacity_bytes
            for placed in leaves.values()
            if placed.leaf.owner in mutable or placed.leaf.owner not in arguments
        )
        for leaves in plan.leaves
    ) / (plan.nbytes or 1)
