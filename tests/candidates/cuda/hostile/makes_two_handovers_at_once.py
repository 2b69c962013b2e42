# expect: race|integrity|output_mismatch|timeout|deadlock rank
# until: time
# Every second call takes the arguments of two, and the outputs of both are taken before there are any; after an odd
# number of calls a handover is left over, for which nobody waits.
import sys

import torch
import torch.distributed as dist

crossed = []


def two_at_once(cross):
    def every_second(self):
        crossed.append(self)
        if len(crossed) % 2:
            cross(self)
            cross(self)

    return every_second


for name, module in list(sys.modules.items()):
    if name.endswith("rankside.handover"):
        module.EnqueuedHandover.cross = two_at_once(module.EnqueuedHandover.cross)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
