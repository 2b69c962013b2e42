# expect: race|integrity|output_mismatch rank
# until: time
# Sums on a stream of its own that the stream of the call never waits for.
import torch
import torch.distributed as dist

_aside: list[torch.cuda.Stream] = []


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    if not _aside:
        _aside.append(torch.cuda.Stream(priority=0))
    out = torch.empty_like(tensor)
    with torch.cuda.stream(_aside[0]):
        torch.cuda._sleep(2_000_000)
        out.copy_(tensor)
        dist.all_reduce(out)
    return out
