# expect: passed
# needs: bubblewrap
# twice: true
# Leaves a file where it may write; a later candidate must not find it (this one is run twice).
from pathlib import Path

import torch
import torch.distributed as dist

MARKS = [Path("/tmp/mark"), Path("/dev/shm/mark"), Path("mark")]
if any(mark.exists() for mark in MARKS):
    raise RuntimeError("another candidate was here")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    for mark in MARKS:
        mark.touch()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
