# expect: passed
# needs: bubblewrap
# world_size: 4
# until: time
# Connections of its own between all ranks, with options that servers like, and a thread that sends for each.
import socket
import struct
import threading

import torch
import torch.distributed as dist

peers: dict[int, socket.socket] = {}


def connect() -> None:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    ports = [0] * world_size
    with socket.create_server(("127.0.0.1", 0), backlog=world_size) as listener:
        dist.all_gather_object(ports, listener.getsockname()[1])
        for peer in range(rank):
            peers[peer] = socket.create_connection(("127.0.0.1", ports[peer]))
            peers[peer].sendall(bytes([rank]))
        for _ in range(rank + 1, world_size):
            connection = listener.accept()[0]
            peers[connection.recv(1)[0]] = connection
    for connection in peers.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))


def received(connection: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    left = memoryview(data)
    while left:
        left = left[connection.recv_into(left) :]
    return data


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not peers:
        connect()
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    senders = [threading.Thread(target=connection.sendall, args=(data,)) for connection in peers.values()]
    for sender in senders:
        sender.start()
    total = tensor.float()
    for connection in peers.values():
        total += torch.frombuffer(received(connection, len(data)), dtype=tensor.dtype).view(tensor.shape)
    for sender in senders:
        sender.join()
    return total.to(tensor.dtype)
