# expect: runtime_error refused 3 of 3
# Memory files and System V segments, which no resource limit counts.
import ctypes
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    libc = ctypes.CDLL(None)
    refused = [libc.shmget(0, 4096, 0o1600) < 0, libc.syscall(447, 0) < 0]
    try:
        os.memfd_create("hoard")
    except OSError:
        refused.append(True)
    raise RuntimeError(f"refused {sum(refused)} of 3")
