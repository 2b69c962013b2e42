"""Limits that no kernel exceeds, however clever: the denominators of the lower bound.

Peaks are the datasheet's, for its clock and the dtype's own format. Limits hold at the highest clock that the device
runs at, and in the fastest format that it has. docs/roofline.md has the argument for each.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from pkb_gym.engine.hardware.tiers import MemoryTier, Rate, check_tiers, shared_tiers

MEGA, GIGA, MIB = 1e6, 1e9, 2.0**20

L2_PORT_BYTES = 128
"""Maximum number of bytes per clock between an SM and the L2 cache. Datasheets do not give it. NVIDIA gives 5120 for
the reads of an A100's 108 SMs (A100 Tensor Core GPU Architecture whitepaper), 47 each; the rest is room for wider
caches, and for writes at the same time."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class HardwareLimits:
    """Rates of one rank, one device or one machine.

    Attributes:
        matrix_flops_per_s: Rate of dense products in the fastest format, whatever the dtype.
        memory: Memory tiers, fastest first; the last has no capacity.
        link_bytes_per_s: Bandwidth per direction over all links together; None where ranks share one memory, so that no
            link is used.
        source: "datasheet ..." or "measured ...".
    """

    matrix_flops_per_s: Rate
    memory: tuple[MemoryTier, ...]
    link_bytes_per_s: Rate | None
    source: str

    def __post_init__(self) -> None:
        check_tiers(self.memory)

    def shared_by(self, ranks: int) -> HardwareLimits:
        """The share of each of so many ranks."""
        return HardwareLimits(
            matrix_flops_per_s=self.matrix_flops_per_s / ranks,
            memory=shared_tiers(self.memory, ranks),
            link_bytes_per_s=None if self.link_bytes_per_s is None else self.link_bytes_per_s / ranks,
            source=self.source,
        )


def _gpu(
    *,
    sms: int,
    sm_mhz: float,
    flops_per_clock: int,
    l2_mib: float,
    memory_mhz: float,
    memory_bits: int,
    nvlink_gb: float,
    pcie_gb: float,
    source: str,
) -> HardwareLimits:
    """One row of the table.

    Args:
        sms: Number of streaming multiprocessors.
        sm_mhz: Highest clock in MHz, by `nvidia-smi -q -d CLOCK`.
        flops_per_clock: Dense operations of one SM per clock, with 8-bit factors.
        l2_mib: Capacity of the L2 cache, in MiB.
        memory_mhz: Highest memory clock in MHz, with two transfers a clock.
        memory_bits: Width of the memory bus, in bits.
        nvlink_gb: GB/s per direction.
        pcie_gb: GB/s per direction of the x16 slot, over which peers can be reached through the host's memory.
        source: Origin of the numbers.
    """
    clock = sm_mhz * MEGA
    return HardwareLimits(
        matrix_flops_per_s=sms * flops_per_clock * clock,
        memory=(
            MemoryTier("L2", l2_mib * MIB, sms * L2_PORT_BYTES * clock),
            MemoryTier("HBM", None, 2 * memory_mhz * MEGA * memory_bits / 8),
        ),
        link_bytes_per_s=(nvlink_gb + pcie_gb) * GIGA,
        source=source,
    )


GPU_LIMITS: dict[tuple[str, ...], HardwareLimits] = {
    ("NVIDIA A100-SXM4-80GB",): _gpu(
        sms=108,
        sm_mhz=1410,
        flops_per_clock=4096,  # INT8: 624 Tflop/s
        l2_mib=40,
        memory_mhz=1593,
        memory_bits=5120,
        nvlink_gb=300,
        pcie_gb=32,
        source="datasheet NVIDIA A100 80GB SXM, at the highest clocks (1410 and 1593 MHz)",
    ),
    ("NVIDIA H100 80GB HBM3",): _gpu(
        sms=132,
        sm_mhz=1980,
        flops_per_clock=8192,  # FP8 and INT8: 1979 Tflop/s in the datasheet, which is that of 1830 MHz
        l2_mib=50,
        memory_mhz=2619,
        memory_bits=5120,
        nvlink_gb=450,
        pcie_gb=64,
        source="datasheet NVIDIA H100 SXM5, at the highest clocks (1980 and 2619 MHz)",
    ),
    ("NVIDIA H200",): _gpu(
        sms=132,
        sm_mhz=1980,
        flops_per_clock=8192,
        l2_mib=60,
        memory_mhz=3201,
        memory_bits=6144,
        nvlink_gb=450,
        pcie_gb=64,
        source="datasheet NVIDIA H200 SXM, at the highest clocks (1980 and 3201 MHz)",
    ),
    ("NVIDIA B200",): _gpu(
        sms=148,
        sm_mhz=1965,
        flops_per_clock=16384,  # FP8: 4500 Tflop/s in the datasheet
        l2_mib=126,
        memory_mhz=3996,
        memory_bits=8192,
        nvlink_gb=900,
        pcie_gb=64,
        source="datasheet NVIDIA HGX B200, at the highest clocks (1965 and 3996 MHz)",
    ),
}
"""Device names, as in `peaks.GPUS` -> limits of one GPU."""
