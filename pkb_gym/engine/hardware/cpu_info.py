"""This machine's processors as the operating system describes them: model, cores, caches."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
PROCESSORS = Path("/proc/cpuinfo")
IDENTITY = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU part", "Features")
"""Fields of /proc/cpuinfo that distinguish kinds of processors; clock rates change by the second."""


@dataclass(frozen=True)
class Cache:
    """One level of data caches.

    Attributes:
        name: "L1", "L2", ...
        core_bytes: Capacity that one core can fill, in bytes.
        machine_bytes: Capacity of all caches of this level that the allowed cores can reach, in bytes.
    """

    name: str
    core_bytes: int
    machine_bytes: int


@dataclass(frozen=True)
class CpuInfo:
    """The cores that this process may use.

    Attributes:
        model: Name of the processor's model, for display.
        identity: Digest that differs between kinds of processor.
        cores: Number of physical cores; two hardware threads of one core share its arithmetic units and count once.
        caches: Caches, smallest first, at least one.
    """

    model: str
    identity: str
    cores: int
    caches: tuple[Cache, ...]


def cpu_info() -> CpuInfo:
    """The cores that this process may use now, with common values where the system reports none."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return _read_once(frozenset(os.sched_getaffinity(0) if has_affinity else range(os.cpu_count() or 1)))


@cache
def _read_once(cpus: frozenset[int]) -> CpuInfo:
    """Every evaluation asks, and dozens of files are read for it."""
    return read_cpu_info(SYSTEM, PROCESSORS, cpus)


def read_cpu_info(system: Path, processors: Path, cpus: frozenset[int]) -> CpuInfo:
    """Reads the processor information of a system.

    Args:
        system: Folder with one folder `cpu<N>` per logical processor.
        processors: File with one block of `name : value` lines per logical processor.
        cpus: Indices of the logical processors that may be used.
    """
    siblings = {_read(system / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    cores = len(siblings)
    fields = _first_processor(processors)
    model = fields.get("model name") or platform.processor() or platform.machine()
    identity = "\n".join(f"{name}: {fields[name]}" for name in IDENTITY if name in fields) or platform.platform()
    return CpuInfo(
        model=model,
        identity=hashlib.sha256(identity.encode()).hexdigest()[:16],
        cores=cores,
        caches=_caches(system, cpus) or _common_caches(cores),
    )


def _caches(system: Path, cpus: frozenset[int]) -> tuple[Cache, ...]:
    """One entry per level; sharing cores count a cache once."""
    found: dict[int, dict[str, int]] = {}
    for cpu in sorted(cpus):
        for index in sorted(system.glob(f"cpu{cpu}/cache/index*")):
            level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
            match = re.fullmatch(r"(\d+)([KMG]?)", size)
            if kind not in ("Data", "Unified") or not level.isdigit() or match is None:
                continue
            size_bytes = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
            found.setdefault(int(level), {})[_read(index / "shared_cpu_list") or str(cpu)] = size_bytes
    return tuple(
        Cache(f"L{level}", core_bytes=max(sizes.values()), machine_bytes=sum(sizes.values()))
        for level, sizes in sorted(found.items())
        if max(sizes.values()) > 0
    )


def _common_caches(cores: int) -> tuple[Cache, ...]:
    """Generous guesses: a cache taken for larger than it is makes the bound lower, never wrong."""
    return (
        Cache("L1", 64 << 10, cores * (64 << 10)),
        Cache("L2", 2 << 20, cores * (2 << 20)),
        Cache("L3", 64 << 20, 64 << 20),
    )


def _first_processor(processors: Path) -> dict[str, str]:
    """The first block of /proc/cpuinfo."""
    block = _read(processors).split("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _read(path: Path) -> str:
    """The file's text without surrounding space, empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
