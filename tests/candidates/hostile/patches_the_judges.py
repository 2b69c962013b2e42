# expect: output_mismatch differ
# Replaces clocks, comparisons and collectives in its own process.
import time

import torch
import torch.distributed as dist

torch.allclose = torch.equal = lambda *args, **kwargs: True
torch.Tensor.all = lambda self, *args, **kwargs: torch.tensor(True)
torch.Tensor.__eq__ = lambda self, other: torch.ones(self.shape, dtype=torch.bool)
time.perf_counter = time.perf_counter_ns = time.monotonic = lambda: 0
dist.all_reduce = lambda *args, **kwargs: None


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
