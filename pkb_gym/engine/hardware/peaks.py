"""Peaks of the hardware, by its datasheet or as measured: the denominators of the roofline."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.limits import GPU_LIMITS, HardwareLimits
from pkb_gym.engine.hardware.tiers import MemoryTier, Rate, check_tiers, memory_s, shared_tiers


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Peaks:
    """Rates at best of one rank, one core, one device or one machine; `HardwareLimits` are those that nothing exceeds.

    Attributes:
        matrix_flops_per_s: Rate of dense matrix products, by dtype of the factors.
        vector_flops_per_s: Rate outside matrix units, by dtype.
        memory: Memory tiers, fastest first; the last has no capacity.
        link_bytes_per_s: Bandwidth per direction.
        link_latency_s: Time in seconds from a write on one rank until another rank can see it; None where it is
            unknown.
        source: "datasheet ..." or "measured ...".
    """

    matrix_flops_per_s: dict[str, Rate]
    vector_flops_per_s: dict[str, Rate]
    memory: tuple[MemoryTier, ...]
    link_bytes_per_s: Rate
    link_latency_s: Rate | None
    source: str

    def __post_init__(self) -> None:
        check_tiers(self.memory)

    def memory_s(self, size_bytes: float) -> float:
        """Least seconds for that much traffic."""
        return memory_s(self.memory, size_bytes)


class HardwareSpec(BaseModel):
    """One GPU, or one CPU machine, whatever the world size."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name of the GPU as by the driver, such as "NVIDIA H200", or of the processor's model."""
    device: Literal["cpu", "cuda"]
    """One rank has a "cuda" device for itself; all ranks share the "cpu" machine."""
    peaks: Peaks
    """Peaks of the one GPU, or of all cores of the machine together."""
    limits: HardwareLimits
    """Limits of the same, which no kernel exceeds."""
    cores: int | None = None
    """Physical cores of a CPU machine, None for a GPU."""
    core: Peaks | None = None
    """One core alone, None for a GPU."""
    measured: Peaks | None = None
    """The measurements on this machine, without margin; None where there are none."""

    @model_validator(mode="after")
    def _cpu_has_cores(self) -> Self:
        if (self.device == "cpu") != (self.cores is not None) or (self.cores is None) != (self.core is None):
            raise ValueError(f"{self.name}: cores and core belong to a cpu device, and to it alone")
        return self

    def rank_peaks(self, world_size: int) -> Peaks:
        """The share of one of `world_size` equally busy ranks.

        A GPU is one rank's own. On a CPU the whole machine is divided among the ranks: a rank may run threads on every
        core, so that even a single one can use all of them.

        Raises:
            ConfigError: the world size is not positive.
        """
        if self._holders(world_size) == 1:
            return self.peaks
        whole = self.peaks
        return Peaks(
            matrix_flops_per_s={dtype: rate / world_size for dtype, rate in whole.matrix_flops_per_s.items()},
            vector_flops_per_s={dtype: rate / world_size for dtype, rate in whole.vector_flops_per_s.items()},
            memory=shared_tiers(whole.memory, world_size),
            link_bytes_per_s=whole.link_bytes_per_s / world_size,
            link_latency_s=whole.link_latency_s,
            source=whole.source,
        )

    def rank_limits(self, world_size: int) -> HardwareLimits:
        """One rank's share of the limits, which no kernel exceeds."""
        holders = self._holders(world_size)
        return self.limits if holders == 1 else self.limits.shared_by(holders)

    def _holders(self, world_size: int) -> int:
        """The number of ranks that share the device."""
        if world_size < 1:
            raise ConfigError(f"world size must be at least 1, got {world_size}")
        return 1 if self.device == "cuda" else world_size


def find_gpu(device_name: str) -> HardwareSpec:
    """The GPU of that name, as `torch.cuda.get_device_name` gives it.

    Names must match in full: "NVIDIA H100 PCIe" and a MIG slice of an H200 are other devices with lower peaks.

    Raises:
        ConfigError: it is not in the table.
    """
    for names, peaks in GPUS.items():
        if device_name in names:
            return HardwareSpec(name=device_name, device="cuda", peaks=peaks, limits=GPU_LIMITS[names])
    known = ", ".join(names[0] for names in GPUS)
    raise ConfigError(
        f"no peaks known for GPU {device_name!r}; known: {known}. Add it to GPUS in "
        "engine/hardware/peaks.py and to GPU_LIMITS in engine/hardware/limits.py"
    )


TERA = 1e12
MIB = float(2**20)


def _gpu(
    *,
    matrix: tuple[float, float, float],
    vector: tuple[float, float, float, float],
    hbm: float,
    l2: tuple[float, float],
    nvlink: float,
    source: str,
) -> Peaks:
    """One row of the table.

    Args:
        matrix: Tflop/s of (bfloat16 and float16, float32, float64), dense. float32 is TF32: it is a float32 kernel's
            fastest legal path where the check admits it, and a ceiling must not forbid what a check allows.
        vector: Tflop/s of (bfloat16, float16, float32, float64).
        hbm: TB/s.
        l2: (MiB, TB/s).
        nvlink: TB/s per direction.
        source: Origin of the numbers.
    """
    half, single, double = (rate * TERA for rate in matrix)
    return Peaks(
        matrix_flops_per_s={"bfloat16": half, "float16": half, "float32": single, "float64": double},
        vector_flops_per_s={
            name: rate * TERA for name, rate in zip(("bfloat16", "float16", "float32", "float64"), vector, strict=True)
        },
        memory=(MemoryTier("L2", l2[0] * MIB, l2[1] * TERA), MemoryTier("HBM", None, hbm * TERA)),
        link_bytes_per_s=nvlink * TERA,
        link_latency_s=None,
        source=source,
    )


# L2 rates are in no datasheet but the A100's (5120 bytes a clock); the same width per die is taken for its successors,
# at the highest clock: far above what microbenchmarks reach, as a ceiling should be. Without this tier a small problem
# whose inputs still lie in L2 would seem to beat the hardware.
GPUS: dict[tuple[str, ...], Peaks] = {
    ("NVIDIA A100-SXM4-80GB",): _gpu(
        matrix=(312, 156, 19.5),
        vector=(39, 78, 19.5, 9.7),
        hbm=2.039,
        l2=(40, 7.2),
        nvlink=0.300,
        source="datasheet NVIDIA A100 80GB SXM (dense), NVIDIA A100 Tensor Core GPU Architecture whitepaper",
    ),
    ("NVIDIA H100 80GB HBM3",): _gpu(
        matrix=(989.4, 494.7, 66.9),
        vector=(133.8, 133.8, 66.9, 33.5),
        hbm=3.352,
        l2=(50, 10.1),
        nvlink=0.450,
        source="datasheet NVIDIA H100 SXM5 (dense), NVIDIA H100 Tensor Core GPU Architecture whitepaper",
    ),
    ("NVIDIA H200",): _gpu(
        matrix=(989.4, 494.7, 66.9),
        vector=(133.8, 133.8, 66.9, 33.5),
        hbm=4.8,
        l2=(60, 10.1),
        nvlink=0.450,
        source="datasheet NVIDIA H200 SXM (dense); vector rates of the H100 whitepaper, whose GPU it shares",
    ),
    ("NVIDIA B200",): _gpu(
        matrix=(2250, 1125, 40),
        vector=(160, 160, 80, 40),
        hbm=8.0,
        l2=(126, 20.1),
        nvlink=0.900,
        source="datasheet NVIDIA HGX B200 (dense), NVIDIA Blackwell Architecture Technical Brief",
    ),
}
"""Device names (as the driver gives them) -> datasheet peaks of one GPU; NVLink per direction."""
