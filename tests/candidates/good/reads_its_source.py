# expect: passed
# The text of its own functions is at hand, as Triton needs it.
import inspect

import torch
import torch.distributed as dist


def add_up(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    assert inspect.getsource(add_up).startswith("def add_up")
    return add_up(tensor)
