# expect: passed
# until: time
# Sources that use Triton may start compilers; this one leaves a busy process behind, which ends when its rank is frozen.
import os

import torch
import torch.distributed as dist
import triton

_left = []


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not _left:
        pid = os.fork()
        while pid == 0:
            pass
        _left.append((pid, triton.__version__))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
