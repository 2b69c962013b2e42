"""Moves the heap of a process that forks many others to huge pages.

fork(2) copies one entry for each page that a process has written, and the end of the child goes through them again:
torch has 36,000, which take 10 ms of kernel time. A huge page has one entry in place of 512. The first write of a child
to it divides it, and copies 4 KiB as before.
"""

from __future__ import annotations

import ctypes
import sys

MADV_COLLAPSE = 25
"""madvise(2), since Linux 6.1; it works whatever /sys/kernel/mm/transparent_hugepage says."""

HUGE_PAGE_BYTES = 2 << 20


def use_huge_pages() -> None:
    """Copies what this process has written to huge pages; where the kernel cannot, all stays as it is."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for begin, end in _heaps():
        begin = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        end = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if begin < end:
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)


def _heaps() -> list[tuple[int, int]]:
    """Addresses of malloc's heap and of writable memory without a file, by proc(5)'s maps."""
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            addresses, rights, _, _, inode, *name = line.split()
            if (rights, inode) == ("rw-p", "0") and name in ([], ["[heap]"]):
                begin, end = addresses.split("-")
                found.append((int(begin, 16), int(end, 16)))
    return found
