# expect: passed
# problem: AllGather
# until: time
# A ring of sends and receives in a group of its own, waited for by asyncio and threads.
import asyncio
import functools
import logging
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

pool = ThreadPoolExecutor(2)


@functools.cache
def group() -> dist.ProcessGroup:
    return dist.new_group(list(range(dist.get_world_size())))


async def pass_around(chunks: list[torch.Tensor], rank: int) -> None:
    world_size = len(chunks)
    for step in range(world_size - 1):
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, chunks[(rank - step) % world_size], (rank + 1) % world_size, group()),
                dist.P2POp(dist.irecv, chunks[(rank - step - 1) % world_size], (rank - 1) % world_size, group()),
            ]
        )
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, work.wait) for work in works))


def solution(tensor: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    chunks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    chunks[rank].copy_(tensor)
    asyncio.run(pass_around(chunks, rank))
    logging.getLogger(__name__).warning("gathered %d", len(chunks))
    return torch.stack(chunks)
