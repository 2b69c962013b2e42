"""Memory of the GPUs in the tables of peaks and limits, as NVML reports it."""

from __future__ import annotations

GPU_MEMORY_GIB: dict[str, float] = {
    "NVIDIA A100-SXM4-80GB": 79.3,
    "NVIDIA H100 80GB HBM3": 79.6,
    "NVIDIA H200": 139.8,
    "NVIDIA B200": 178.4,
}
"""First name of each in `peaks.GPUS` -> GiB."""


def gpus_with(nbytes: int) -> tuple[str, ...]:
    """The GPUs of `GPU_MEMORY_GIB` that have so much memory, in its order."""
    return tuple(name for name, gib in GPU_MEMORY_GIB.items() if gib * 2**30 >= nbytes)
