# expect: passed
# until: time
# Sums in the heap, where the rank program would copy the result to: as right as ever, and no speedup that pays.
import sys

import torch
import torch.distributed as dist

(python,) = [module for name, module in sys.modules.items() if name.endswith("rankside.python")]


def call(self, index, epoch, hold_ns=0):
    out = self._deliveries[index]._destinations[0][0]._tensor
    out.copy_(self._arguments[index][0])
    dist.all_reduce(out)
    return (None,)


python.Python.call = call


def solution(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError("nobody calls it")
