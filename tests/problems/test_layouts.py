"""Every problem can be laid out in every size, dtype and world size: no trial needs more room than its heap has.

`make test` lays out a sample of the problems, and those that not every GPU has memory for; `make all` every one.
"""

from __future__ import annotations

import dataclasses
import heapq

import pytest

from pkb_gym.engine.compare.layout import SetPlan, Workload, partitions_of, plan_set
from pkb_gym.engine.hardware.gpu_memory import GPU_MEMORY_GIB, gpus_with
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import ITEMSIZE
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.stages.heap_layout import HeapLayout, lay_out
from pkb_gym.engine.wire.abi import MAX_GROUPS
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.whole_tables import IS_WHOLE, sampled

CHECKED_TRIALS, TIMED_TRIALS = (24, 4) if IS_WHOLE else (4, 2)
SLOW_TO_DRAW, FEW_TRIALS = ("MoEDispatch", "MoECombine"), 4 if IS_WHOLE else 2
"""Problems that draw the experts of every token to know their sizes; those differ little from trial to trial."""

LARGEST = 3
"""Sets that are laid out in the other dtypes too: those that are largest in the default one."""

EVERY_GPU = tuple(GPU_MEMORY_GIB)
LARGE_GPUS = ("NVIDIA H200", "NVIDIA B200")
FIT_SOME: dict[tuple[str, str, int], tuple[str, ...]] = {
    ("GNNSparseFeatureFetch", "published", 1): ("NVIDIA B200",),  # a table of 57 GB
    ("GNNSparseFeatureFetch", "published", 2): LARGE_GPUS,
    ("VocabParallelCrossEntropy", "large", 1): LARGE_GPUS,
}
"""Problem, size, world size -> GPUs with memory for it in its default dtype, where not all have."""

LAID_OUT = dict.fromkeys([*sampled(catalogue(), 12), *(find_problem(name) for name, _, _ in FIT_SOME)])


def workload(problem: Problem, config: ResolvedConfig) -> Workload:
    """Of another key than the layout's own trials."""
    return Workload(
        problem, config.size_argument, config.world_size, config.dtype, config.protocol, b"an evaluator's", 0, 0
    )


def configuration(problem: Problem, size: str, world_size: int, dtype: str) -> ResolvedConfig:
    asked = EvalConfig(device="cuda", size=size, world_size=world_size, dtype=dtype)
    return resolve(asked, problem, device="cuda", language="cuda", memory_total_bytes=1 << 40, gpus=world_size)


def assert_fits(problem: Problem, plan: SetPlan, layout: HeapLayout, where: object) -> None:
    room = layout.segment_bytes - layout.scratch_bytes
    assert plan.nbytes < room - (1 << 19), f"{problem.name} {where}: {plan.nbytes} bytes, the heap has {room}"


@pytest.mark.parametrize("problem", LAID_OUT, ids=lambda problem: problem.name)
def test_every_trial_fits_into_the_heap_and_the_heap_into_gpus(problem: Problem) -> None:
    """Of 29 combinations of problem, size and world size later trials were larger than the heap."""
    default, *others = problem.dtypes
    gpus = {}
    for size in problem.sizes:
        for world_size in problem.world_sizes:
            config = configuration(problem, size, world_size, default)
            layout, of_default = lay_out(problem, config), workload(problem, config)
            gpus[problem.name, size, world_size] = gpus_with(layout.memory_bytes)
            checked = FEW_TRIALS if problem.name in SLOW_TO_DRAW else CHECKED_TRIALS
            trials = [(t, False) for t in range(checked)] + [(t, True) for t in range(TIMED_TRIALS)]
            plans: dict[int, SetPlan] = {}
            for trial, timed in trials:
                axes = of_default.axes(trial, timed)
                if id(axes) not in plans:
                    plans[id(axes)] = plan_set(problem, trial, axes, 0)
                    assert_fits(problem, plans[id(axes)], layout, (config, trial))
                    assert len(partitions_of(problem, [plans[id(axes)]])) <= MAX_GROUPS
            largest = heapq.nlargest(LARGEST, plans.values(), key=lambda plan: plan.nbytes)
            layouts = {ITEMSIZE[default]: layout}
            for dtype in others:
                config = configuration(problem, size, world_size, dtype)
                alike = layouts.get(ITEMSIZE[dtype])
                layout = layouts[ITEMSIZE[dtype]] = alike or lay_out(problem, config)
                for plan in largest:
                    axes = [dataclasses.replace(ax, dtype=dtype) for ax in plan.axes]
                    assert_fits(problem, plan_set(problem, plan.trial, axes, 0), layout, (config, plan.trial))
    assert gpus == {key: FIT_SOME.get(key, EVERY_GPU) for key in gpus}


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_dtypes_of_one_size_have_one_layout(problem: Problem) -> None:
    """So that the test above lays out one of them."""
    layouts: dict[int, set[HeapLayout]] = {}
    for dtype in problem.dtypes:
        layout = lay_out(problem, configuration(problem, "tiny", 2, dtype))
        layouts.setdefault(ITEMSIZE[dtype], set()).add(layout)
    assert all(len(of_size) == 1 for of_size in layouts.values())


def test_scratch_has_no_room_for_tables_of_which_a_call_reads_a_few_rows() -> None:
    """Twice a table of 27 GiB made a heap of 86 GiB, and the published size was never judged on 2 GPUs."""
    problem = find_problem("GNNSparseFeatureFetch")
    layout = lay_out(problem, configuration(problem, "published", 2, "bfloat16"))
    table = 111_000_000 // 2 * 256 * 2
    assert layout.scratch_bytes < 64 << 20
    assert table < layout.segment_bytes < 1.05 * table


def test_exceptions_are_of_the_catalogue() -> None:
    names = {problem.name for problem in catalogue()}
    assert {name for name, _, _ in FIT_SOME} <= names
