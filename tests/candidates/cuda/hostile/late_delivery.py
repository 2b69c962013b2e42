# expect: race|integrity|output_mismatch rank
# until: time
# Finds where results are delivered to, returns nothing, and writes there from a stream of its own.
import sys

import torch
import torch.distributed as dist

(python,) = [module for name, module in sys.modules.items() if name.endswith("rankside.python")]
streams: list[torch.cuda.Stream] = []


def call(self, index, epoch, hold_ns=0):
    destination = self._deliveries[index]._destinations[0][0]._tensor
    if not streams:
        streams.append(torch.cuda.Stream())
    with torch.cuda.stream(streams[0]):
        out = self._arguments[index][0].clone()
        dist.all_reduce(out)
        torch.cuda._sleep(2_000_000)
        destination.copy_(out)
    return (None,)


python.Python.call = call


def solution(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError("nobody calls it")
