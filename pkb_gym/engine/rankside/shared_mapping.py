"""Shared memory without a descriptor.

`mmap.mmap` keeps a duplicate of the descriptor that it is given. In a rank, a candidate could have the kernel read from
it into an output, in one call that no signal interrupts.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TypeAlias

Memory: TypeAlias = "ctypes.Array[ctypes.c_char]"
"""Mapped bytes; `ctypes.addressof` gives their address."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_shared(fd: int, nbytes: int) -> Memory:
    """Maps the first bytes of a file, which is closed, for reading and writing.

    They are unmapped with the last object that uses them.

    Raises:
        OSError: they cannot be mapped.
    """
    try:
        address = _LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if address in (None, _FAILED):
        raise OSError(ctypes.get_errno(), f"{nbytes} bytes of shared memory cannot be mapped")
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, nbytes).atexit = False
    return memory
