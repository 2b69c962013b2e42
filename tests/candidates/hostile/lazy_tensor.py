# expect: wrong_shape_or_dtype expected a plain dense tensor; Lazy
# A subclass that would compute when it is looked at.
import torch
import torch.distributed as dist


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = args[0].as_subclass(torch.Tensor).clone()
        dist.all_reduce(out)
        return func(out, *args[1:], **(kwargs or {}))


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Lazy)
