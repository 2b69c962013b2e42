# expect: deadlock rank 1
# One rank replies without end while another sleeps: what nobody asked for must not pile up.
import os
import socket
import struct

import torch
import torch.distributed as dist


def connection() -> socket.socket:
    """The socket that leads to the evaluator: the one of the Unix kind."""
    for fd in range(3, 64):
        try:
            sock = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        if sock.family == socket.AF_UNIX:
            return sock
    raise RuntimeError("no connection found")


def frame(text: str, raw: bytes = b"") -> bytes:
    return struct.pack("!II", len(text), len(raw)) + text.encode() + raw


def solution(tensor: torch.Tensor) -> torch.Tensor:
    import time

    while dist.get_rank() == 1:
        time.sleep(1)
    wire, junk = connection(), frame('{"message": "BlockDone", "claims": "[]"}') * 1000
    while True:
        wire.sendall(junk)
