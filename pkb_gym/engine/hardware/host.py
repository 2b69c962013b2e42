"""This machine as the operating system sees it: processors and main memory."""

from __future__ import annotations

import os


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(world_size: int) -> int:
    """Processor threads that each rank computes with, so that all ranks together use every processor once."""
    return max(1, processors() // world_size)


def memory_total_bytes() -> int:
    """Main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
