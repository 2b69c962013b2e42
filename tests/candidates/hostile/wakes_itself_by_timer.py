# expect: runtime_error refused 4 of 4
# A timer that sends SIGCONT would let a frozen rank go on while the clock stands.
import ctypes
import signal
import struct

import torch

SIGEV_SIGNAL, SIGEV_THREAD_ID = 0, 4


def solution(tensor: torch.Tensor) -> torch.Tensor:
    signal.signal(signal.SIGCONT, lambda *_: None)
    libc = ctypes.CDLL(None)
    refused = 0
    for clock in (0, 1):  # CLOCK_REALTIME, CLOCK_MONOTONIC
        for notify, thread in ((SIGEV_SIGNAL, 0), (SIGEV_THREAD_ID, libc.gettid())):
            event = struct.pack("Piii44x", 0, signal.SIGCONT, notify, thread)
            timer = ctypes.c_void_p()
            if libc.timer_create(clock, event, ctypes.byref(timer)) != 0:
                refused += 1
            else:
                every_millisecond = struct.pack("4q", 0, 1_000_000, 0, 1_000_000)
                libc.timer_settime(timer, 0, every_millisecond, None)
    raise RuntimeError(f"refused {refused} of 4")
