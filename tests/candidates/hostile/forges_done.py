# expect: integrity|output_mismatch rank
# until: time
# Says that it is done before it is, and again when it is.
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
    connection().sendall(frame('{"message": "BlockDone", "claims": "[[null], [null], [null], [null]]"}'))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
