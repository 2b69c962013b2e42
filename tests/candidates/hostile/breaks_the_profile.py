# expect: integrity harness_tampering; ProfileDone.wall_ns
# until: profile
# What is no time where the profile is due.
import dataclasses
import sys

import torch
import torch.distributed as dist

for name, module in list(sys.modules.items()):
    if name.endswith("rankside.python"):
        profile = module.Python.profile
        module.Python.profile = lambda *args: dataclasses.replace(profile(*args), wall_ns="much")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
