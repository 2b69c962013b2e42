# expect: runtime_error Function not implemented
# Timers that run out one by one while the rank is frozen: each interrupts the baseline on the rank's processor.
import ctypes
import os
import struct

import torch

LIBC = ctypes.CDLL(None, use_errno=True)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    for number in range(900):
        timer = LIBC.timerfd_create(1, 0)
        if timer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        LIBC.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 0, 0, 100_000 + number * 10_000), None)
    return tensor.clone()
