# expect: passed|integrity interference
# until: time
# needs: bubblewrap
# Connections at a set pace: the kernel would go on to send for a frozen rank, beside the baseline.
import socket
import struct
import threading
import time

import torch
import torch.distributed as dist

SO_MAX_PACING_RATE, CONNECTIONS, QUEUED = 47, 100, 100_000
pairs: list[tuple[socket.socket, socket.socket]] = []


def connect() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    for _ in range(CONNECTIONS):
        near = socket.socket()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 100)
        near.connect(listener.getsockname())
        near.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("I", 300_000))
        pairs.append((near, listener.accept()[0]))
    for pair in pairs:
        for end in pair:
            end.setblocking(False)


def keep_filled() -> None:
    queued = [0] * CONNECTIONS
    while True:
        for index, (near, far) in enumerate(pairs):
            try:
                while queued[index] < QUEUED:
                    queued[index] += near.send(bytes(4096))
            except BlockingIOError:
                pass
            try:
                queued[index] -= len(far.recv(1 << 20))
            except BlockingIOError:
                pass
        time.sleep(0.001)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not pairs:
        connect()
        threading.Thread(target=keep_filled, daemon=True).start()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
