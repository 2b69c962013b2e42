"""Hardware records, the system's description of processors, and the texts made of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.cpu_info import Cache, read_cpu_info
from pkb_gym.engine.hardware.limits import GPU_LIMITS, HardwareLimits
from pkb_gym.engine.hardware.peaks import GPUS, HardwareSpec, Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier, memory_s
from pkb_gym.envs.text.topology import topology_text

DTYPES = {"bfloat16", "float16", "float32", "float64"}


def peaks(factor: float = 1.0, *, llc: float = 1000.0, dram: float = 10.0) -> Peaks:
    """One core: 100 flop/s matrix, 50 vector, caches of 100 B (L1) and `llc` (L3), link 20 B/s; `factor` cores."""
    return Peaks(
        matrix_flops_per_s={"float32": 100.0 * factor},
        vector_flops_per_s={"float32": 50.0 * factor},
        memory=(
            MemoryTier("L1", 100.0 * factor, 200.0 * factor),
            MemoryTier("L3", llc, 40.0 * factor),
            MemoryTier("DRAM", None, dram),
        ),
        link_bytes_per_s=20.0 * factor,
        link_latency_s=1e-6,
        source="measured by hand",
    )


def cpu(cores: int = 2) -> HardwareSpec:
    """`cores` such cores, with 15 B/s of DRAM together."""
    whole = peaks(cores, dram=15.0)
    return HardwareSpec(name="CPU", device="cpu", peaks=whole, limits=limits_of(whole), cores=cores, core=peaks())


def test_a_rank_may_use_idle_cores_too():
    half = cpu(cores=4).rank_peaks(2)
    assert half.matrix_flops_per_s == {"float32": 200.0}
    assert half.link_bytes_per_s == 40.0
    assert half.memory == (
        MemoryTier("L1", 200.0, 400.0),
        MemoryTier("L3", 500.0, 80.0),
        MemoryTier("DRAM", None, 7.5),
    )


def test_ranks_share_the_cores_where_there_are_more_ranks():
    quarter = cpu(cores=2).rank_peaks(8)
    assert quarter.matrix_flops_per_s == {"float32": 25.0}
    assert quarter.vector_flops_per_s == {"float32": 12.5}
    assert quarter.link_bytes_per_s == 5.0
    assert quarter.memory[0] == MemoryTier("L1", 25.0, 50.0)
    assert quarter.link_latency_s == 1e-6, "latency is not shared"


def test_one_rank_has_the_whole_machine():
    assert cpu(cores=2).rank_peaks(1) == cpu(cores=2).peaks


def test_ranks_share_limits_as_they_share_peaks():
    limits = cpu(cores=4).rank_limits(2)
    assert limits.memory == cpu(cores=4).rank_peaks(2).memory
    # Products of bytes are four times as fast.
    assert limits.matrix_flops_per_s == 4 * 200.0
    assert limits.link_bytes_per_s is None, "nothing has to cross between ranks that share a memory"
    gpu = find_gpu("NVIDIA H200")
    assert gpu.rank_limits(8) == gpu.limits


@pytest.mark.parametrize("of_rank", [HardwareSpec.rank_peaks, HardwareSpec.rank_limits])
def test_world_size_must_be_positive(of_rank):
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        of_rank(cpu(), 0)


def test_memory_time_fills_the_tiers_in_turn():
    one = peaks()
    for size, seconds in ((0, 0), (100, 0.5), (140, 0.5 + 1), (100 + 1000 + 30, 0.5 + 25 + 3)):
        assert one.memory_s(size) == memory_s(one.memory, size) == pytest.approx(seconds)


def test_gpu_ranks_do_not_share():
    gpu = find_gpu("NVIDIA H200")
    assert gpu.rank_peaks(8) == gpu.peaks


@pytest.mark.parametrize("name", [name for names in GPUS for name in names])
def test_gpu_table_is_complete(name):
    gpu = find_gpu(name)
    assert gpu.device == "cuda"
    assert set(gpu.peaks.matrix_flops_per_s) == set(gpu.peaks.vector_flops_per_s) == DTYPES
    assert gpu.peaks.source.startswith("datasheet")
    assert all(gpu.peaks.matrix_flops_per_s[d] >= gpu.peaks.vector_flops_per_s[d] for d in DTYPES)


@pytest.mark.parametrize(
    ("name", "bfloat16", "hbm", "nvlink"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12, 2.039e12, 300e9),
        ("NVIDIA H100 80GB HBM3", 989.4e12, 3.352e12, 450e9),
        ("NVIDIA H200", 989.4e12, 4.8e12, 450e9),
        ("NVIDIA B200", 2250e12, 8e12, 900e9),
    ],
)
def test_gpu_datasheet_numbers(name, bfloat16, hbm, nvlink):
    gpu = find_gpu(name).peaks
    assert gpu.matrix_flops_per_s["bfloat16"] == pytest.approx(bfloat16)
    assert gpu.memory[-1].bytes_per_s == pytest.approx(hbm)
    assert gpu.link_bytes_per_s == pytest.approx(nvlink)


@pytest.mark.parametrize("name", [name for names in GPUS for name in names])
def test_gpu_limits_stand_above_the_datasheet(name):
    """A tier or link that is faster in the datasheet than in the limits would make the bound no bound."""
    gpu = find_gpu(name)
    peaks, limits = gpu.peaks, gpu.limits
    # The fastest format is 8-bit, twice as fast as 16-bit, and limits are those of no lower clock.
    assert limits.matrix_flops_per_s >= 2 * max(peaks.matrix_flops_per_s.values()) * (1 - 1e-3)
    assert [tier.name for tier in limits.memory] == [tier.name for tier in peaks.memory] == ["L2", "HBM"]
    assert limits.memory[0].capacity_bytes == peaks.memory[0].capacity_bytes
    assert all(
        limit.bytes_per_s >= peak.bytes_per_s * (1 - 1e-3)
        for limit, peak in zip(limits.memory, peaks.memory, strict=True)
    )
    assert limits.link_bytes_per_s > peaks.link_bytes_per_s, "peers can be reached over PCIe too"
    assert limits.source.startswith("datasheet") and "MHz" in limits.source


def test_every_gpu_of_the_table_has_limits():
    assert set(GPU_LIMITS) == set(GPUS)


def test_limits_of_an_h200_by_hand():
    """Regression: the datasheet's matrix rate is that of 1830 MHz, its memory rate below that of its memory's clock."""
    limits = find_gpu("NVIDIA H200").limits
    assert limits.matrix_flops_per_s == pytest.approx(2 * 989.4e12 * 1980 / 1830, rel=1e-3)
    assert limits.memory[-1].bytes_per_s == pytest.approx(4.917e12, rel=1e-3)
    assert limits.link_bytes_per_s == pytest.approx(514e9)


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 MIG 1g.18gb", "Radeon"])
def test_unknown_gpu_names_those_known(name):
    with pytest.raises(ConfigError, match=f"no peaks known for GPU '{name}'; known: NVIDIA A100"):
        find_gpu(name)


def test_record_survives_json_and_refuses_what_it_does_not_know():
    spec = cpu()
    assert HardwareSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError, match="colour"):
        HardwareSpec.model_validate(spec.model_dump() | {"colour": "green"})


def test_record_refuses_nonsense():
    with pytest.raises(ValidationError, match="greater than 0"):
        MemoryTier("DRAM", None, 0.0)
    with pytest.raises(ValidationError, match="must have no capacity"):
        Peaks({}, {}, (MemoryTier("L1", 10.0, 1.0),), 1.0, None, "measured")
    with pytest.raises(ValidationError, match="cores and core belong to a cpu"):
        HardwareSpec(name="CPU", device="cpu", peaks=peaks(), limits=limits_of(peaks()))
    with pytest.raises(ValidationError, match="cores and core belong to a cpu"):
        HardwareSpec(name="GPU", device="cuda", peaks=peaks(), limits=limits_of(peaks()), cores=2, core=peaks())
    with pytest.raises(ValidationError, match="must have no capacity"):
        HardwareLimits(1.0, (MemoryTier("L1", 10.0, 1.0),), None, "measured")


def fake_system(folder: Path) -> tuple[Path, Path]:
    """Four logical processors on two cores; each core has 32 KiB + 32 KiB of L1 and both share 8 MiB of L3."""
    for number in range(4):
        cpu_folder = folder / f"cpu{number}"
        siblings = "0-1" if number < 2 else "2-3"
        (cpu_folder / "topology").mkdir(parents=True)
        (cpu_folder / "topology" / "thread_siblings_list").write_text(siblings + "\n")
        for index, (level, kind, size, shared) in enumerate(
            [
                ("1", "Data", "32K", siblings),
                ("1", "Instruction", "32K", siblings),
                ("3", "Unified", "8M", "0-3"),
            ]
        ):
            cache = cpu_folder / "cache" / f"index{index}"
            cache.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                (cache / name).write_text(text + "\n")
    processors = folder / "cpuinfo"
    processors.write_text("processor\t: 0\nmodel name\t: Test 9000\ncpu MHz\t\t: 1234.5\n\nprocessor\t: 1\n")
    return folder, processors


def test_cpu_info_counts_cores_and_caches_once(tmp_path):
    info = read_cpu_info(*fake_system(tmp_path), cpus=frozenset(range(4)))
    assert (info.model, info.cores) == ("Test 9000", 2)
    assert info.caches == (Cache("L1", 32 << 10, 64 << 10), Cache("L3", 8 << 20, 8 << 20))


def test_cpu_info_counts_allowed_cores_only(tmp_path):
    info = read_cpu_info(*fake_system(tmp_path), cpus=frozenset({2, 3}))
    assert info.cores == 1
    assert info.caches[0] == Cache("L1", 32 << 10, 32 << 10)


def test_cpu_identity_ignores_the_clock_but_not_the_model(tmp_path):
    system, processors = fake_system(tmp_path)
    before = read_cpu_info(system, processors, frozenset({0})).identity
    processors.write_text(processors.read_text().replace("1234.5", "999.9"))
    assert read_cpu_info(system, processors, frozenset({0})).identity == before
    processors.write_text(processors.read_text().replace("9000", "9001"))
    assert read_cpu_info(system, processors, frozenset({0})).identity != before


def test_cpu_info_without_a_system_to_ask(tmp_path):
    info = read_cpu_info(tmp_path / "none", tmp_path / "nothing", frozenset({0, 1, 2}))
    assert info.cores == 3
    assert [cache.name for cache in info.caches] == ["L1", "L2", "L3"]


def test_topology_of_a_cpu_gives_the_share():
    text = topology_text(cpu(cores=2), 4, "float32")
    assert "4 ranks, one process each, on 2 cores of one machine (CPU): 0.5 of a core each" in text
    assert "shared memory" in text
    assert "latency 1000 ns" in text
    assert "one core each" in topology_text(cpu(cores=2), 1, "float32")


def test_topology_of_gpus_states_whether_there_is_multicast():
    gpu = find_gpu("NVIDIA H200")
    text = topology_text(gpu, 4, "bfloat16")
    assert "each on its own NVIDIA H200" in text
    assert "450 GB/s per direction" in text
    assert "matrix 989 Tflop/s" in text
    assert "HBM 4.8 TB/s" in text
    assert "Multicast (NVLS) is available" in text
    assert "switched off" in topology_text(gpu, 4, "bfloat16", multicast_disabled=True)
