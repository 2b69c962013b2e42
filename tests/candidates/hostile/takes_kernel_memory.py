# expect: runtime_error refused 5 of 5
# Memory of the kernel that no limit of a process counts: a table of futexes, filters of system calls, rules of landlock.
# The filter would also have every call written to the machine's log; and another order of input and output.
import ctypes
import errno
import os
import platform
import struct

import torch

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_FUTEX_HASH, PR_FUTEX_HASH_SET_SLOTS = 22, 2, 78, 1
LANDLOCK_CREATE_RULESET, SECCOMP, IOPRIO_SET = 444, 317, 251
if platform.machine() == "aarch64":
    SECCOMP, IOPRIO_SET = 277, 30
LOG_EVERY_CALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFC0000))
PROGRAM = struct.pack("HxxxxxxP", 1, ctypes.addressof(LOG_EVERY_CALL))


def solution(tensor: torch.Tensor) -> torch.Tensor:
    refused = 0
    for call in (
        lambda: LIBC.prctl(PR_FUTEX_HASH, PR_FUTEX_HASH_SET_SLOTS, ctypes.c_ulong(1 << 24), 0, 0),
        lambda: LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PROGRAM, 0, 0),
        lambda: LIBC.syscall(SECCOMP, 1, 0, PROGRAM),
        lambda: LIBC.syscall(LANDLOCK_CREATE_RULESET, struct.pack("QQ", 0, 3), ctypes.c_size_t(16), 0),
        lambda: LIBC.syscall(IOPRIO_SET, 1, os.getpid(), 3 << 13),
    ):
        refused += call() < 0 and ctypes.get_errno() == errno.EPERM
    raise RuntimeError(f"refused {refused} of 5")
