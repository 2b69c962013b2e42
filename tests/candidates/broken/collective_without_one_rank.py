# expect: deadlock every unfinished rank waits
# Rank 1 never joins the collective.
import time

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 1:
        time.sleep(1000)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
