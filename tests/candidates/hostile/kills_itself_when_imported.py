# expect: compile_error rank 0 was killed by SIGKILL
# Ends itself where it is imported, to be judged once more; there it is run once more, and fails all the same.
import os
import signal

import torch
import torch.distributed as dist

if dist.is_initialized() and dist.get_rank() == 0:
    os.kill(os.getpid(), signal.SIGKILL)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
