# expect: runtime_error rank 1 ended its process (exit status 0)
# Rank 1 leaves without a word.
import os

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 1:
        os._exit(0)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
