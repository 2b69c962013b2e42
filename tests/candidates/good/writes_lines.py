# expect: passed
# until: time
# Prints to stdout and stderr, without a line break or a flush.
import sys

import torch
import torch.distributed as dist

printed = []


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not printed:
        printed.append(True)
        print("\033[32mgrün\033[0m, ", end="")
        print("緑 on rank", dist.get_rank(), end="", file=sys.stderr)
    out = tensor.clone()
    dist.all_reduce(out, op=dist.ReduceOp.SUM)
    return out
