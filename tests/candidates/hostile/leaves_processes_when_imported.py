# expect: passed
# The compile stage may start compilers; what else it starts must end with it.
import subprocess
import sys

import torch
import torch.distributed as dist

try:
    for _ in range(4):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
except PermissionError:
    pass  # on the ranks nothing may be started


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
