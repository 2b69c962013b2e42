"""Measures the ceilings of this CPU machine. Imports torch: runs in a process of its own (see `calibrate`).

Arithmetic and memory come from a small compiled program (`measure.cpp`) where there is a C++ compiler, and from torch
otherwise; matrix products also from torch, whose libraries know matrix units (AMX and its kin) that the program does
not. Everything is the best of several, on one core; cores without a shared resource are multiplied.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from pkb_gym.engine.hardware.cpu_info import CpuInfo
from pkb_gym.engine.hardware.peaks import Peaks
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.support.ownership import TemporaryFolder

DTYPES = ("bfloat16", "float16", "float32", "float64")

LIBRARY_HEADROOM = 1.5
"""Best library kernels reach two thirds or more of a unit's peak; used where only a library measured it."""

SOURCE = Path(__file__).with_name("measure.cpp")
COMPILE_TIMEOUT_S = 60.0
PROGRAM_TIMEOUT_S = 60.0


class CoreRates(TypedDict):
    """The peaks of one core; the compiled program prints exactly this.

    `core_bytes_per_s` has one entry per cache level and one for DRAM; `dram_bytes_per_s` is of all cores together.
    """

    matrix: dict[str, float]
    vector: dict[str, float]
    core_bytes_per_s: list[float]
    dram_bytes_per_s: float
    link_bytes_per_s: float
    link_latency_s: float | None


def measure(info: CpuInfo, compiler: str | None, repetitions: int) -> tuple[Peaks, Peaks]:
    """Ceilings of one core and of the whole machine, without margin.

    Args:
        info: Processors of this machine.
        compiler: Path of g++ or a compatible compiler; None where there is none.
        repetitions: 3 is usual; 1 is quick and less sure.
    """
    products = {dtype: _matmul_flops_per_s(dtype, repetitions) for dtype in DTYPES}
    rates = _compiled_rates(info, compiler, repetitions) if compiler else None
    how = f"measured by a compiled program ({Path(compiler).name}) and torch.matmul" if compiler else ""
    if rates is None:
        rates, how = _torch_rates(info, products, repetitions), "measured by torch"
    matrix = _matrix_peaks(rates["matrix"], products)
    wide = rates["vector"]
    # bfloat16 is computed in float32; float16 too, unless the core adds float16 itself.
    vector = {dtype: max(wide.get(dtype, 0.0), wide["float32" if dtype != "float64" else dtype]) for dtype in DTYPES}
    levels = [*info.caches, None]
    core = Peaks(
        matrix_flops_per_s=matrix,
        vector_flops_per_s=vector,
        memory=tuple(
            MemoryTier(cache.name if cache else "DRAM", cache.core_bytes if cache else None, rate)
            for cache, rate in zip(levels, rates["core_bytes_per_s"], strict=True)
        ),
        link_bytes_per_s=rates["link_bytes_per_s"],
        link_latency_s=rates["link_latency_s"],
        source=how,
    )
    return core, _machine(info, core, rates["dram_bytes_per_s"])


def _machine(info: CpuInfo, core: Peaks, dram_bytes_per_s: float) -> Peaks:
    """All cores together: everything times their number, but for DRAM, which they share."""
    caches = (
        MemoryTier(tier.name, cache.machine_bytes, tier.bytes_per_s * info.cores)
        for tier, cache in zip(core.memory[:-1], info.caches, strict=True)
    )
    dram = MemoryTier("DRAM", None, max(dram_bytes_per_s, core.memory[-1].bytes_per_s))
    return Peaks(
        matrix_flops_per_s={dtype: rate * info.cores for dtype, rate in core.matrix_flops_per_s.items()},
        vector_flops_per_s={dtype: rate * info.cores for dtype, rate in core.vector_flops_per_s.items()},
        memory=(*caches, dram),
        link_bytes_per_s=core.link_bytes_per_s * info.cores,
        link_latency_s=core.link_latency_s,
        source=core.source,
    )


def _matrix_peaks(formula: dict[str, float], products: dict[str, float]) -> dict[str, float]:
    """The greater of what the instructions allow and what products reached.

    A product well above the instructions' rate ran on a unit that the program does not know; libraries do not reach
    the peak of such a unit, so headroom is added. 16-bit factors are never slower than float32: they can be converted.
    """
    peaks: dict[str, float] = {}
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        derived = formula.get(dtype, peaks.get("float32", 0.0))
        beyond = products[dtype] > 1.2 * derived
        peaks[dtype] = products[dtype] * LIBRARY_HEADROOM if beyond else max(derived, products[dtype])
    return {dtype: max(peaks[dtype], peaks["float32"] if dtype != "float64" else 0.0) for dtype in DTYPES}


def _matmul_flops_per_s(dtype: str, repetitions: int) -> float:
    """flop/s of `torch.matmul` on one core, the best of some square sizes."""
    import torch

    torch.set_num_threads(1)
    best = 0.0
    for size in (256, 512, 1024):
        left, right = (torch.ones(size, size, dtype=getattr(torch, dtype)) for _ in range(2))
        seconds = _best_seconds(lambda left=left, right=right: torch.matmul(left, right), 3 * repetitions)  # type: ignore[misc]  # defaults bind the loop's tensors
        best = max(best, 2.0 * size**3 / seconds)
        if seconds > 0.01:  # a slow path; a larger product would only take longer
            break
    return best


def _best_seconds(work: Callable[[], object], repetitions: int) -> float:
    """Seconds of the fastest of several calls, after one that warms up."""
    work()
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return max(best, 1e-9)


def _compiled_rates(info: CpuInfo, compiler: str, repetitions: int) -> CoreRates | None:
    """Compiles the program and runs it; None where either fails (the torch path then serves)."""
    with TemporaryFolder() as folder:
        program = folder.path / "measure"
        flags = ["-O3", "-march=native", "-std=c++17", "-pthread"]
        caches = [str(cache.core_bytes) for cache in info.caches]
        try:
            subprocess.run(
                [compiler, *flags, str(SOURCE), "-o", str(program)],
                check=True,
                capture_output=True,
                timeout=COMPILE_TIMEOUT_S,
            )
            ran = subprocess.run(
                [str(program), str(repetitions), str(info.cores), *caches],
                check=True,
                capture_output=True,
                timeout=PROGRAM_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    rates: CoreRates = json.loads(ran.stdout)
    return rates


def _torch_rates(info: CpuInfo, products: dict[str, float], repetitions: int) -> CoreRates:
    """The same by torch alone, with headroom, because its kernels stay below the peaks."""
    import torch

    def copy_bytes_per_s(size_bytes: int) -> float:
        source, target = (torch.ones(max(size_bytes // 8, 1024), dtype=torch.float32) for _ in range(2))
        seconds = _best_seconds(lambda: target.copy_(source), 10 * repetitions)
        return 2 * source.nbytes / seconds * LIBRARY_HEADROOM

    dram_bytes = min(max(3 * info.caches[-1].core_bytes, 128 << 20), 1 << 30)
    rates = [copy_bytes_per_s(cache.core_bytes // 2) for cache in info.caches] + [copy_bytes_per_s(dram_bytes)]
    arithmetic = {dtype: products[dtype] * LIBRARY_HEADROOM for dtype in ("float32", "float64")}
    return CoreRates(
        matrix=arithmetic,
        vector=arithmetic,
        # A short copy spends most of its time in torch's dispatcher: a smaller cache is no slower than a larger one.
        core_bytes_per_s=[max(rates[level:]) for level in range(len(rates))],
        dram_bytes_per_s=rates[-1] * info.cores,
        link_bytes_per_s=max(rates),
        link_latency_s=None,
    )
