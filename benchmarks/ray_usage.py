"""Processor time and memory of the processes of a Ray cluster on this machine, by part of the cluster."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict

import psutil

from benchmarks.ray_cluster import ray_processes

PARTS = {
    "ray::Pool": "pool",
    "ray::GangActor": "gangs",
    "ray::compile_source": "compilers",
    "ray::IDLE": "compilers",
    "/raylet/raylet": "raylets",
    "/gcs/gcs_server": "gcs",
}
"""Word in the command line of a process -> the part it belongs to. Others are agents of Ray."""

OTHERS = "agents"


class ClusterUsage:
    """Samples the processes of a cluster while the block runs.

    Args:
        every_s: between samples.

    Attributes:
        pool_mib: resident memory of the pool's process, in the order of time.
        total_mib: of all processes of the cluster, likewise; pages that they share count once (PSS).
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.pool_mib: list[float] = []
        self.total_mib: list[float] = []
        self._first: dict[int, tuple[str, float]] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, daemon=True)

    def __enter__(self) -> ClusterUsage:
        self._sample(self._first)
        self._last.update(self._first)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._sample(self._last)

    def processor_s(self) -> dict[str, float]:
        """Part -> processor time since the block began; that of a process that ended, up to its last sample."""
        found: defaultdict[str, float] = defaultdict(float)
        for pid, (part, used_s) in self._last.items():
            found[part] += used_s - self._first.get(pid, ("", 0.0))[1]
        return dict(found)

    def processes(self) -> dict[str, int]:
        """Part -> number of processes that were seen."""
        return dict(Counter(part for part, _ in self._last.values()))

    def _sample_on(self) -> None:
        while not self._ending.wait(self._every_s):
            self._sample(self._last)

    def _sample(self, into: dict[int, tuple[str, float]]) -> None:
        total_bytes = 0.0
        for process in ray_processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                part = next((part for word, part in PARTS.items() if word in command), OTHERS)
                used = process.cpu_times()
                into[process.pid] = (part, used.user + used.system)
                if part == "pool":
                    self.pool_mib.append(process.memory_info().rss / 2**20)
                total_bytes += _share_of_memory(process)
        self.total_mib.append(total_bytes / 2**20)


def _share_of_memory(process: psutil.Process) -> float:
    """Its PSS in bytes; its resident memory where the kernel does not say."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return float(process.memory_info().rss)
