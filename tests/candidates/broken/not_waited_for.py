# expect: wrong_shape_or_dtype got an AsyncCollectiveTensor of shape (32, 48); wait for it: .wait()
# A functional collective whose result is returned as it is.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(tensor, "sum", dist.group.WORLD)
