# expect: passed
# needs: bubblewrap
# Removes its own working folder, to its own loss alone.
import os
import shutil

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    shutil.rmtree("/tmp/scratch", ignore_errors=True)  # the working folder inside the sandbox
    out = tensor.clone()
    dist.all_reduce(out)
    return out
