# expect: race|integrity|output_mismatch rank
# until: time
# Asks for its next arguments when its result is there, before that has been copied: the wait overlaps with the copy.
import os

import torch
import torch.distributed as dist

write = os.eventfd_write
asked: list[int] = []
requests: list[int] = []


def ask_once(fd: int, value: int) -> None:
    requests[:] = [fd]
    if asked:
        asked.clear()
    else:
        write(fd, value)


os.eventfd_write = ask_once


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    if requests:
        asked.append(1)
        write(requests[0], 1)
    return out
