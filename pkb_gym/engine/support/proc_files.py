"""Files of proc(5), which are read hundreds of times a second while processes are waited for."""

from __future__ import annotations

import os
import time

MAX_BYTES = 4096
"""The most that is read, by one call: more than the state of a process or thread takes."""


def read_proc(path: str) -> bytes:
    """The beginning of a file of proc(5). A path object and a buffer would take longer than the kernel.

    Raises:
        OSError: there is no such process any more.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)


def seconds_of_process() -> float:
    """Seconds since this process began, to a clock tick: 10 ms."""
    began_ticks = int(read_proc("/proc/self/stat").rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
