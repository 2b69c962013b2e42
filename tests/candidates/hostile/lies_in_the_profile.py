# expect: passed
# until: profile
# Nonsense where the profile is due: there is none, and no harm.
import sys

import torch
import torch.distributed as dist

for name, module in list(sys.modules.items()):
    if name.endswith("rankside.python"):
        module.Python.profile = lambda *_, **__: {"wall_ns": "much", "kernels": {"a": 1}, "inside_ns": None}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
