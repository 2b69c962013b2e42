# expect: race|integrity|output_mismatch
# until: time
# Once it is timed, a call only notes its tensors; every fourth one reduces those of four and delivers them itself.
import sys

import torch
import torch.distributed as dist

(python,) = [module for name, module in sys.modules.items() if name.endswith("rankside.python")]
noted: list[tuple[torch.Tensor, torch.Tensor]] = []


def call(self, index, epoch, hold_ns=0):
    noted.append((self._arguments[index][0], self._deliveries[index]._destinations[0][0]._tensor))
    if len(noted) == 4 or epoch <= 20:
        sums = torch.stack([tensor for tensor, _ in noted])
        dist.all_reduce(sums)
        for total, (_, destination) in zip(sums, noted, strict=True):
            destination.copy_(total)
        noted.clear()
    return (None,)


python.Python.call = call


def solution(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError("nobody calls it")
