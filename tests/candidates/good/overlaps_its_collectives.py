# expect: passed
# until: time
# Collectives that are begun together and waited for at the end, and threads that are joined.
import threading

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    works = [dist.all_reduce(part, async_op=True) for part in out.chunk(2)]
    doubled: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: doubled.append(tensor * 2))
    thread.start()
    for work in works:
        work.wait()
    thread.join()
    return out
