# expect: passed
# until: time
# Ranks meet in memory that they share by themselves.
import mmap
import os

import torch
import torch.distributed as dist

RANK, SIZE = dist.get_rank(), dist.get_world_size()
ROOM = 1 << 20
fd = os.open("/dev/shm/meeting", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, ROOM * (SIZE + 1))
memory = mmap.mmap(fd, ROOM * (SIZE + 1))
flags = torch.frombuffer(memory, dtype=torch.int64, count=2 * SIZE, offset=ROOM * SIZE)
places = [torch.frombuffer(memory, dtype=torch.uint8, count=ROOM, offset=ROOM * rank) for rank in range(SIZE)]
count = 0


def meet(phase: int) -> None:
    flags[SIZE * phase + RANK] = count
    while int(flags[SIZE * phase : SIZE * (phase + 1)].min()) < count:
        os.sched_yield()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    global count
    count += 1
    mine = tensor.view(torch.uint8).flatten()
    places[RANK][: mine.numel()] = mine
    meet(0)
    out = sum(place[: mine.numel()].view(tensor.dtype).view(tensor.shape).float() for place in places)
    meet(1)
    return out.to(tensor.dtype)
