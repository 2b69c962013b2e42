# expect: output_mismatch|race differ
# until: time
# Does all the work when it receives a block's arguments, before the clock starts.
import sys

import torch
import torch.distributed as dist

ready: list[torch.Tensor] = []


def early(bind):
    def bind_and_work(self, calls, partitions):
        bind(self, calls, partitions)
        ready.clear()
        for (tensor,) in self._arguments:
            out = tensor.clone()
            dist.all_reduce(out)
            ready.append(out)

    return bind_and_work


for name, module in list(sys.modules.items()):
    if name.endswith("rankside.python"):
        module.Python.bind = early(module.Python.bind)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return ready.pop(0)
