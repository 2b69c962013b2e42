"""The ceiling, against values computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.limits import Limits
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.problem import Cost
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.stages.roofline import lower_bound, place_costs

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
        limits=Limits(
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


def test_latency_is_told_beside_the_ceiling():
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
