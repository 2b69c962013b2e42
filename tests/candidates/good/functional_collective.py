# expect: passed
# until: time
# A functional collective whose result is returned as it is: torch waits for it when it is used.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(tensor, "sum", dist.group.WORLD)
