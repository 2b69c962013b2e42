# expect: passed
# problem: GemmAllReduce
# world_size: 4
# A layer without weights, called on those of the arguments and mapped over rows, under a mode that sees every operator.
import functools

import torch
import torch.distributed as dist
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

layer = torch.nn.Linear(1, 1, bias=False, device="meta")


class Counter(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counter.count += 1
        return func(*args, **(kwargs or {}))


def row(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return functional_call(layer, {"weight": weight}, (x,))


class Solution:
    def __call__(self, A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
        half = len(A_local) // 2
        with Counter():
            upper = torch.einsum("mk,kn->mn", A_local[:half], B_local)
            out = torch.cat([upper, vmap(functools.partial(row, B_local.T))(A_local[half:])])
        dist.all_reduce(out)
        return out


solution = Solution()
