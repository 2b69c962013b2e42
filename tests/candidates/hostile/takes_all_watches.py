# expect: runtime_error refused 3 of 3
# Watches of files are counted for all programs of a user; what a rank takes, they lack. It would also know when others
# read a file of the system.
import ctypes
import errno

import torch

LIBC = ctypes.CDLL(None, use_errno=True)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    refused = 0
    for call in (LIBC.inotify_init, lambda: LIBC.inotify_init1(0), lambda: LIBC.fanotify_init(0, 0)):
        refused += call() < 0 and ctypes.get_errno() == errno.EPERM
    raise RuntimeError(f"refused {refused} of 3")
