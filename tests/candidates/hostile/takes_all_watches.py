# expect: runtime_error refused 4 of 4
# Watches of files are counted for all programs of a user; what a rank takes, they lack. It would also know when others
# read a file of the system.
import ctypes
import errno
import fcntl
import os

import torch

LIBC = ctypes.CDLL(None, use_errno=True)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    refused = 0
    for call in (LIBC.inotify_init, lambda: LIBC.inotify_init1(0), lambda: LIBC.fanotify_init(0, 0)):
        refused += call() < 0 and ctypes.get_errno() == errno.EPERM
    folder = os.open("/usr/lib", os.O_RDONLY)
    try:
        fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
    except PermissionError:
        refused += 1
    raise RuntimeError(f"refused {refused} of 4")
