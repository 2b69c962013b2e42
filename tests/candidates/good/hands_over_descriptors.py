# expect: passed
# needs: bubblewrap
# Memory of each rank that all map by descriptors, sent over datagram sockets in /tmp: how ThunderKittens' broker does it.
import mmap
import os
import socket
from array import array

import torch
import torch.distributed as dist

RANK, SIZE = dist.get_rank(), dist.get_world_size()
ROOM = 1 << 20
places: list[torch.Tensor] = []


def address(rank: int) -> str:
    return f"/tmp/broker.sock{rank}"


def meet() -> None:
    fds = {RANK: os.open(f"/dev/shm/broker{RANK}", os.O_RDWR | os.O_CREAT | os.O_EXCL)}
    os.ftruncate(fds[RANK], ROOM)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as broker:
        broker.bind(address(RANK))
        dist.barrier()
        for peer in range(SIZE):
            if peer != RANK:
                rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fds[RANK]])
                broker.sendmsg([bytes([RANK])], [rights], 0, address(peer))
        for _ in range(SIZE - 1):
            message, (fd,), _, _ = socket.recv_fds(broker, 1, 1)
            fds[message[0]] = fd
    places.extend(torch.frombuffer(mmap.mmap(fds[rank], ROOM), dtype=torch.uint8) for rank in range(SIZE))


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not places:
        meet()
    mine = tensor.view(torch.uint8).flatten()
    places[RANK][: mine.numel()] = mine
    dist.barrier()
    out = sum(place[: mine.numel()].view(tensor.dtype).view(tensor.shape).float() for place in places)
    dist.barrier()
    return out.to(tensor.dtype)
