# expect: wrong_shape_or_dtype expected (32, 48) bfloat16; got (32, 48) float32
# Right values in float32.
import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out.float()
