"""The ceiling, against values computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.limits import HardwareLimits
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.problem import Cost
from pkb_gym.engine.records.feedback import Failure, Finding
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages import roofline as roofline_stage
from pkb_gym.engine.stages.roofline import lower_bound, place_costs, place_run
from pkb_gym.rewards.examples import timed
from tests.engine.stages.fake_gangs import PROBLEM, Bench

H200 = find_gpu("NVIDIA H200")


def gpu() -> HardwareSpec:
    """1 Tflop/s matrix, 100 Gflop/s vector, 1 MB of cache at 1 TB/s, 100 GB/s behind it, link 10 GB/s, 2 us."""
    return HardwareSpec(
        name="GPU",
        device="cuda",
        peaks=Peaks(
            matrix_flops_per_s={"float32": 1e12, "bfloat16": 2e12},
            vector_flops_per_s={"float32": 1e11, "bfloat16": 2e11},
            memory=(MemoryTier("L2", 1e6, 1e12), MemoryTier("HBM", None, 1e11)),
            link_bytes_per_s=1e10,
            link_latency_s=2e-6,
            source="datasheet of a GPU that is not",
        ),
        limits=HardwareLimits(
            matrix_flops_per_s=4e12,
            memory=(MemoryTier("L2", 1e6, 2e12), MemoryTier("HBM", None, 1e11)),
            link_bytes_per_s=1.1e10,
            source="datasheet of a GPU that is not, at its highest clock",
        ),
    )


def cpu(cores: int) -> HardwareSpec:
    """Cores of 1 Gflop/s (matrix and vector), 1 GB/s in 1 MB of shared cache, 0.5 GB/s of DRAM, link 0.1 GB/s."""

    def cores_together(number: int) -> Peaks:
        return Peaks(
            matrix_flops_per_s={"float32": 1e9 * number},
            vector_flops_per_s={"float32": 1e9 * number},
            memory=(MemoryTier("L3", 1e6, 1e9 * number), MemoryTier("DRAM", None, 5e8)),
            link_bytes_per_s=1e8 * number,
            link_latency_s=None,
            source="measured by hand",
        )

    peaks = cores_together(cores)
    return HardwareSpec(
        name="CPU", device="cpu", peaks=peaks, limits=limits_of(peaks), cores=cores, core=cores_together(1)
    )


def place(
    costs: Sequence[Cost],
    dtype: str,
    hardware: HardwareSpec,
    baseline_us: float | None,
    candidate_us: float | None,
) -> Roofline:
    """The roofline of work of which nothing is certain."""
    bound = lower_bound([[Cost()] * max(1, len(costs))], hardware, "Nothing is certain.")
    return place_costs(costs, bound, dtype, hardware, baseline_us, candidate_us)


def on_gpu(*costs: Cost, dtype: str = "float32") -> Roofline:
    return place(costs, dtype, gpu(), None, None)


@pytest.mark.parametrize(
    ("cost", "ceiling_us", "binds"),
    [
        (Cost(matrix_flops=3e9), 3000.0, "matrix"),
        (Cost(vector_flops=3e9), 30000.0, "vector"),
        (Cost(memory_bytes=5e5), 0.5, "memory"),  # cache only
        (Cost(memory_bytes=3e6), 1.0 + 20.0, "memory"),  # 1 MB at 1 TB/s, 2 MB at 100 GB/s
        (Cost(link_in_bytes=1e6), 100.0, "link"),
        (Cost(link_out_bytes=2e6, link_in_bytes=1e6), 200.0, "link"),  # directions do not add up
        (Cost(matrix_flops=3e9, vector_flops=1e8, memory_bytes=3e6, link_in_bytes=1e6), 3000.0, "matrix"),
    ],
)
def test_ceiling_is_the_slowest_resource(cost, ceiling_us, binds):
    roofline = on_gpu(cost)
    assert roofline.ceiling_us == pytest.approx(ceiling_us)
    assert roofline.binds == binds


def test_every_resource_has_its_time():
    times = on_gpu(Cost(matrix_flops=3e9, vector_flops=1e8, memory_bytes=3e6, link_in_bytes=1e6)).times
    assert (times.matrix_us, times.vector_us, times.memory_us, times.link_us) == pytest.approx((3000, 1000, 21, 100))


def test_dtype_chooses_the_peak():
    assert on_gpu(Cost(matrix_flops=3e9), dtype="bfloat16").ceiling_us == pytest.approx(1500)
    with pytest.raises(ConfigError, match="no peaks for dtype 'float8'; there are bfloat16, float32"):
        on_gpu(Cost(), dtype="float8")


def test_slowest_rank_decides_on_gpus():
    roofline = on_gpu(Cost(link_in_bytes=3e6), Cost(link_out_bytes=1e6), Cost(link_out_bytes=1e6), Cost())
    assert roofline.ceiling_us == pytest.approx(300)


def test_all_gather_gemm_on_h200_by_hand():
    # M = K = 8192, N = 7168, W = 8, bfloat16; shard M * K/8
    shard, gemm = 8192 * 1024 * 2, 2 * 8192 * 8192 * 7168
    memory = shard + 8192 * 7168 * 2 + 8192 * 7168 * 2
    cost = Cost(matrix_flops=gemm, memory_bytes=memory, link_in_bytes=7 * shard, link_out_bytes=7 * shard)
    roofline = place([cost] * 8, "bfloat16", H200, baseline_us=2000.0, candidate_us=1250.0)
    assert roofline.times.matrix_us == pytest.approx(gemm / 989.4e12 * 1e6)
    assert roofline.times.link_us == pytest.approx(7 * shard / 450e9 * 1e6)
    assert roofline.ceiling_us == pytest.approx(972.38, abs=0.01)
    assert roofline.binds == "matrix"
    assert roofline.baseline_utilisation == pytest.approx(0.48619, abs=1e-5)
    assert roofline.candidate_utilisation == pytest.approx(0.77790, abs=1e-5)
    assert roofline.peaks_source.startswith("datasheet NVIDIA H200")


def test_cpu_ranks_share_cores():
    cost = Cost(matrix_flops=1e6)
    assert place([cost], "float32", cpu(2), None, None).ceiling_us == pytest.approx(500)
    assert place([cost] * 2, "float32", cpu(2), None, None).ceiling_us == pytest.approx(1000)
    assert place([cost] * 8, "float32", cpu(2), None, None).ceiling_us == pytest.approx(4000)


def test_cpu_ceiling_is_the_total_because_cores_may_help_each_other():
    # A gather to rank 0: three cores push 1 MB each, at the same time, into its memory.
    costs = [Cost(link_in_bytes=3e6), *[Cost(link_out_bytes=1e6)] * 3]
    assert place(costs, "float32", cpu(4), None, None).ceiling_us == pytest.approx(3e6 / 4e8 * 1e6)
    # One rank with all the work is not bound by half a core where two cores stand by.
    costs = [Cost(vector_flops=4e6), Cost(), Cost(), Cost()]
    assert place(costs, "float32", cpu(2), None, None).ceiling_us == pytest.approx(2000)


def test_cpu_cache_is_shared_by_all_ranks():
    # 0.5 MB in all: fits; 2 cores at 1 GB/s.
    assert place([Cost(memory_bytes=1.25e5)] * 4, "float32", cpu(2), None, None).ceiling_us == pytest.approx(250)
    # 4 MB in all: 1 MB from the cache at 2 GB/s, 3 MB from DRAM at 0.5 GB/s.
    assert place([Cost(memory_bytes=1e6)] * 4, "float32", cpu(2), None, None).ceiling_us == pytest.approx(500 + 6000)


@pytest.mark.parametrize("size", [1e3, 9e5, 1.1e6, 1e8])
def test_more_traffic_never_lowers_the_ceiling(size):
    smaller = place([Cost(memory_bytes=size)], "float32", cpu(2), None, None)
    larger = place([Cost(memory_bytes=size * 1.01)], "float32", cpu(2), None, None)
    assert larger.ceiling_us > smaller.ceiling_us


def test_peaks_shown_are_those_used():
    roofline = on_gpu(Cost(memory_bytes=3e6))
    assert roofline.peaks.memory_bytes_per_s == pytest.approx(3e6 / 21e-6)
    assert on_gpu(Cost(link_in_bytes=1)).peaks.memory_bytes_per_s == 1e12


def test_achieved_rates_are_the_cost_over_time():
    cost = Cost(matrix_flops=3e9, vector_flops=1e8, memory_bytes=3e6, link_in_bytes=1e6)
    roofline = place([cost], "float32", gpu(), baseline_us=None, candidate_us=1e4)
    assert roofline.baseline_achieved is None and roofline.baseline_utilisation is None
    achieved = roofline.candidate_achieved
    assert achieved is not None
    assert achieved.matrix_flops_per_s == pytest.approx(3e11)
    assert achieved.vector_flops_per_s == pytest.approx(1e10)
    assert achieved.memory_bytes_per_s == pytest.approx(3e8)
    assert achieved.link_bytes_per_s == pytest.approx(1e8)


def test_latency_is_reported_beside_the_ceiling():
    assert on_gpu(Cost(link_in_bytes=1)).latency_floor_us == pytest.approx(2)
    assert on_gpu(Cost(link_in_bytes=1)).ceiling_us == pytest.approx(1e-4)
    assert on_gpu(Cost(memory_bytes=1)).latency_floor_us == 0
    assert place([Cost(link_in_bytes=1)], "float32", cpu(1), None, None).latency_floor_us is None


def test_no_work_takes_no_time():
    roofline = place([Cost(), Cost()], "float32", gpu(), 10.0, 5.0)
    assert (roofline.ceiling_us, roofline.binds, roofline.candidate_utilisation) == (0, None, 0)


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match="at least one rank"):
        place([], "float32", gpu(), None, None)
    with pytest.raises(ConfigError, match=r"candidate's time must be positive, got 0.0 us"):
        place([Cost()], "float32", gpu(), 1.0, 0.0)


def test_record_survives_json():
    roofline = place([Cost(link_in_bytes=1e6)], "float32", gpu(), 150.0, 120.0)
    assert Roofline.model_validate_json(roofline.model_dump_json()) == roofline


def slow(hardware: HardwareSpec) -> HardwareSpec:
    """Takes milliseconds for `PROBLEM` at size tiny, so that the microsecond that is in doubt is nothing."""
    tiers = tuple(replace(tier, bytes_per_s=1e6) for tier in hardware.limits.memory)
    return hardware.model_copy(update={"limits": replace(hardware.limits, memory=tiers)})


def placed(monkeypatch: pytest.MonkeyPatch, hardware: HardwareSpec, candidate_us: float) -> Bench:
    """A candidate that was timed, nothing subtracted, with its roofline."""
    monkeypatch.setattr(roofline_stage, "find_hardware", lambda device: hardware)
    bench = Bench(dtype="float32")
    timing = timed(baseline_us=1000).timing
    assert timing is not None
    bench.feedback.timing = timing.model_copy(
        update={"candidate_us": candidate_us, "gate_us": 0.0, "candidate_handover_us": 0.0}
    )
    with bench.run() as run:
        place_run(run)
    return bench


def placed_problem(hardware: HardwareSpec) -> Roofline:
    axes = [PROBLEM.axes(size="tiny", world_size=2, rank=rank, dtype="float32") for rank in range(2)]
    return roofline_stage.place(PROBLEM, [axes], hardware)


def test_a_timed_candidate_gets_its_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = placed(monkeypatch, gpu(), candidate_us=500.0)
    roofline = bench.feedback.roofline
    assert roofline is not None and not bench.feedback.failed
    expected = placed_problem(gpu())
    assert (roofline.ceiling_us, roofline.lower_bound) == (expected.ceiling_us, expected.lower_bound)
    assert roofline.lower_bound.argument == PROBLEM.least_work.argument
    assert roofline.candidate_utilisation == pytest.approx(roofline.ceiling_us / 500)
    assert roofline.baseline_utilisation == pytest.approx(roofline.ceiling_us / 1000)


def findings(bench: Bench) -> tuple[Finding, ...]:
    found = bench.feedback.build()
    assert found.failure in (None, Failure.INTEGRITY)
    return found.integrity


@pytest.mark.parametrize(
    ("hardware", "share_in_doubt"), [(slow(gpu()), 0.0), (slow(cpu(2)), 0.5)], ids=["datasheet", "measured"]
)
def test_a_candidate_that_beats_the_bound_is_caught(
    monkeypatch: pytest.MonkeyPatch, hardware: HardwareSpec, share_in_doubt: float
) -> None:
    """What was measured on this machine may be too low; a datasheet is not."""
    bound_us = placed_problem(hardware).lower_bound.time_us
    assert bound_us > 100 * integrity.CLOCK_ERROR_US
    legal_us = bound_us * (1 - share_in_doubt)
    assert findings(placed(monkeypatch, hardware, 1.01 * legal_us)) == ()
    (finding,) = findings(placed(monkeypatch, hardware, 0.98 * legal_us))
    assert finding.code == "beats_roofline" and "no kernel takes less than" in finding.detail


def test_the_ceiling_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    roofline = placed_problem(gpu())
    between_us = (roofline.ceiling_us + roofline.lower_bound.time_us) / 2
    assert roofline.lower_bound.time_us < between_us < roofline.ceiling_us
    bench = placed(monkeypatch, gpu(), between_us)
    assert findings(bench) == ()
    assert bench.feedback.roofline is not None and (bench.feedback.roofline.candidate_utilisation or 0) > 1


def test_a_gpu_that_nobody_knows_has_no_roofline_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(device: str) -> HardwareSpec:
        raise ConfigError("no peaks known for this GPU")

    monkeypatch.setattr(roofline_stage, "find_hardware", unknown)
    bench = Bench()
    bench.feedback.timing = timed().timing
    with bench.run() as run:
        place_run(run)
    assert bench.feedback.roofline is None and not bench.feedback.failed
