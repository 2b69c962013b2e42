# expect: runtime_error refused 2 of 2
# A descriptor that sends SIGCONT when it can be read would let a frozen rank go on while the clock stands.
import fcntl
import os
import signal
import socket

import torch

F_SETSIG = 10


def solution(tensor: torch.Tensor) -> torch.Tensor:
    signal.signal(signal.SIGCONT, lambda *_: None)
    refused = 0
    for reading in (os.pipe()[0], socket.socketpair()[0].detach()):
        fcntl.fcntl(reading, fcntl.F_SETOWN, os.getpid())
        try:
            fcntl.fcntl(reading, F_SETSIG, signal.SIGCONT)
            fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        except PermissionError:
            refused += 1
    raise RuntimeError(f"refused {refused} of 2")
