# expect: runtime_error refused 4 of 4
# Memory that no resource limit counts: files of memory, System V segments, shared memory that is unmapped but for a page.
import ctypes
import mmap
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    libc = ctypes.CDLL(None)
    refused = [libc.shmget(0, 4096, 0o1600) < 0, libc.syscall(447, 0) < 0]
    try:
        os.memfd_create("hoard")
    except OSError:
        refused.append(True)
    try:
        mmap.mmap(-1, 1 << 20)
    except OSError:
        refused.append(True)
    raise RuntimeError(f"refused {sum(refused)} of 4")
