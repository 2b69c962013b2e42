"""The lower bound, against values computed by hand, and what beating it means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.limits import HardwareLimits
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.problem import Axes, Cost, LeastWork, product_numbers, with_link
from pkb_gym.engine.records.roofline import LowerBound
from pkb_gym.engine.records.timing import Timing
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.roofline import lower_bound, place
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import timed

H200 = find_gpu("NVIDIA H200")
FULL = Cost(matrix_flops=4e9, vector_flops=8e9, memory_bytes=3e6, link_in_bytes=2e6, link_out_bytes=1e6)


def gpu() -> HardwareSpec:
    """4 Tflop/s of matrix products, 1 MB of cache at 1 TB/s, 100 GB/s behind it, link 10 GB/s."""
    return H200.model_copy(
        update={
            "limits": HardwareLimits(
                matrix_flops_per_s=4e12,
                memory=(MemoryTier("L2", 1e6, 1e12), MemoryTier("HBM", None, 1e11)),
                link_bytes_per_s=1e10,
                source="datasheet of a GPU that is not, at its highest clock",
            )
        }
    )


def cpu(cores: int) -> HardwareSpec:
    """Cores of 1 Gflop/s in float32 and 2 in bfloat16, 1 GB/s of memory each."""

    def together(number: int) -> Peaks:
        return Peaks(
            matrix_flops_per_s={"float32": 1e9 * number, "bfloat16": 2e9 * number},
            vector_flops_per_s={"float32": 1e9 * number},
            memory=(MemoryTier("DRAM", None, 1e9 * number),),
            link_bytes_per_s=1e8 * number,
            link_latency_s=None,
            source="measured by hand",
        )

    peaks = together(cores)
    return HardwareSpec(name="CPU", device="cpu", peaks=peaks, limits=limits_of(peaks), cores=cores, core=together(1))


def bound_of(*costs: Cost, hardware: HardwareSpec | None = None) -> LowerBound:
    return lower_bound([costs], hardware or gpu(), "By hand.")


@pytest.mark.parametrize(
    ("cost", "time_us", "binds"),
    [
        (Cost(matrix_flops=4e9), 1000, "matrix"),
        (Cost(vector_flops=1e15), 0, None),  # never certain
        (Cost(memory_bytes=5e5), 0.5, "memory"),
        (Cost(memory_bytes=3e6), 1 + 20, "memory"),
        (Cost(link_out_bytes=1e6, link_in_bytes=5e5), 100, "link"),
        (FULL, 1000, "matrix"),
    ],
)
def test_the_slowest_certain_resource_is_the_bound(cost, time_us, binds):
    bound = bound_of(cost)
    assert (bound.time_us, bound.binds) == (pytest.approx(time_us), binds)
    assert bound.times.vector_us == 0 and bound.argument == "By hand."


def test_slowest_rank_decides_on_gpus_and_the_mean_on_a_cpu():
    costs = [Cost(memory_bytes=3e6), Cost(), Cost(), Cost()]
    assert bound_of(*costs).time_us == pytest.approx(21)
    # All four cores may read the one rank's memory.
    assert bound_of(*costs, hardware=cpu(4)).time_us == pytest.approx(3e6 / 4e9 * 1e6)


def test_nothing_has_to_cross_between_ranks_that_share_a_memory():
    assert bound_of(Cost(link_in_bytes=1e9), hardware=cpu(2)).binds is None


def test_a_processor_multiplies_bytes_four_times_as_fast_as_its_widest_factors():
    assert bound_of(Cost(matrix_flops=8e9), hardware=cpu(1)).time_us == pytest.approx(1e6)


def test_the_trial_with_the_least_work_counts():
    """Sizes that change from trial to trial: the average of a block may lie below the first trial."""
    trials = [[Cost(memory_bytes=nbytes)] for nbytes in (3e6, 2e6, 4e6)]
    assert lower_bound(trials, gpu(), "By hand.").time_us == pytest.approx(11)


AX = Axes({"M": 8, "W": 2, "r": 0}, "bfloat16")


def test_numbers_on_a_link_may_be_coded():
    """4 bits of the 16 of bfloat16, of the 32 of float32."""
    least = LeastWork("By hand.")
    assert least.on_rank(AX, FULL) == Cost(matrix_flops=4e9, memory_bytes=3e6, link_in_bytes=5e5, link_out_bytes=2.5e5)
    wide = replace(AX, dtype="float32")
    assert least.on_rank(wide, FULL).link_in_bytes == 2.5e5


def test_only_what_the_argument_holds_for_counts():
    assert LeastWork("By hand.", of=("memory",)).on_rank(AX, FULL) == Cost(memory_bytes=3e6)


def test_least_work_is_never_more_than_the_cost():
    least = LeastWork("By hand.", work=lambda ax: with_link(FULL, 1e9, 0.0))
    assert least.on_rank(AX, FULL).link_in_bytes == 5e5
    assert least.on_rank(AX, FULL).link_out_bytes == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LeastWork("because"), "must be a sentence, got 'because'"),
        (lambda: LeastWork("Because.", of=("link",)), "counts the memory at least"),
    ],
)
def test_a_declaration_without_an_argument_is_refused(make, words):
    with pytest.raises(DeclarationError, match=words):
        make()


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [((8, 6, 100), 48), ((8, 6, 1), 13), ((8, 6, 3), 33), ((8, 6, 6), 48), ((8, 6, 0), 0)],
)
def test_numbers_that_determine_a_product(shape, numbers):
    assert product_numbers(*shape) == numbers


def accused(bound_us: float, timing: Timing, source: str = "datasheet of a GPU that is not") -> bool:
    bound = bound_of(Cost(memory_bytes=1)).model_copy(update={"time_us": bound_us, "limits_source": source})
    findings = integrity.beats_roofline(bound, timing)
    for finding in findings:
        assert finding.code == "beats_roofline" and "By hand." in finding.detail and "(memory)" in finding.detail
    return bool(findings)


def timing(candidate_us: float, **changes: float) -> Timing:
    """Ten calls a block; nothing subtracted unless `changes` say so."""
    made = timed(baseline_us=1000.0, speedup=1000.0 / candidate_us).timing
    assert made is not None
    return made.model_copy(update={"gate_us": 0.0, "candidate_handover_us": 0.0, **changes})


@pytest.mark.parametrize(("candidate_us", "is_accused"), [(98.9, True), (99.1, False), (101.0, False)])
def test_a_microsecond_is_in_doubt(candidate_us, is_accused):
    assert accused(100.0, timing(candidate_us)) is is_accused


def test_what_was_subtracted_is_in_doubt():
    """A handover of 4 us, ten calls a block: 4.4 us a call, and a gate and a context switch of 100 us are 20."""
    assert accused(100.0, timing(90.0))
    assert not accused(100.0, timing(95.0, candidate_handover_us=4.0))
    assert not accused(100.0, timing(90.0, candidate_handover_us=10.0))
    assert accused(100.0, timing(90.0, gate_us=50.0))
    assert not accused(100.0, timing(90.0, gate_us=50.0, context_switch_us=50.0))


def test_measured_limits_may_be_too_low_by_half():
    assert not accused(100.0, timing(60.0), "measured by hand")
    assert accused(100.0, timing(48.0), "measured by hand")


def test_where_no_work_is_certain_nobody_is_accused():
    assert not accused(0.0, timing(0.001))


def all_reduce_us(world_size: int, link_bytes: float) -> tuple[float, float]:
    """The lower bound of a large all-reduce, and the time of so many bytes for each of its own at the link's peak."""
    problem = find_problem("AllReduce")
    axes = [problem.axes(size="large", world_size=world_size, rank=rank) for rank in range(world_size)]
    nbytes = axes[0].M * axes[0].N * axes[0].itemsize
    bound = place(problem, [axes], H200).lower_bound
    return bound.time_us, link_bytes * nbytes / H200.peaks.link_bytes_per_s * 1e6


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_switch_that_adds_does_not_beat_the_bound_of_an_all_reduce(world_size):
    """Regression: 2 (W - 1) / W of the tensor were charged, and a switch with multicast needs 1 + 1 / W each way."""
    endpoints_us = all_reduce_us(world_size, 2 * (world_size - 1) / world_size)[1]
    bound_us, switch_us = all_reduce_us(world_size, 1 + 1 / world_size)
    assert world_size == 2 or switch_us < endpoints_us
    assert bound_us < switch_us


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_an_all_reduce_of_bytes_does_not_beat_the_bound(world_size):
    """8-bit numbers on the link pass the check on 8 ranks; NCCL's way or the switch's."""
    for link_bytes in (2 * (world_size - 1) / world_size, 1 + 1 / world_size):
        bound_us, bytes_us = all_reduce_us(world_size, link_bytes / 2)
        assert bound_us < bytes_us
