# expect: passed
# world_size: 4
# until: time
# Sums of pairs of ranks, then of pairs of pairs, in groups made by the first call; parts by threads that stay.
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

pool = ThreadPoolExecutor(3)
local = threading.local()
groups = {}


def widen(part: torch.Tensor) -> torch.Tensor:
    local.calls = getattr(local, "calls", 0) + 1
    return part.float()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not groups:
        groups.update({pair: dist.new_group(list(pair)) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))})
    rank = dist.get_rank()
    out = torch.cat(list(pool.map(widen, tensor.chunk(3))))
    dist.all_reduce(out, group=groups[rank // 2 * 2, rank // 2 * 2 + 1])
    dist.all_reduce(out, group=groups[rank % 2, rank % 2 + 2])
    return out.to(tensor.dtype)
