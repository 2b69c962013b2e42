# expect: passed
# until: time
# Ranks meet in shared memory of `multiprocessing`: two buffers by the parity of the call, and names that are removed at once.
from multiprocessing import Lock, shared_memory

import torch
import torch.distributed as dist

arenas: list[shared_memory.SharedMemory] = []
lock = Lock()
calls = 0


def meet(nbytes: int) -> None:
    mine = shared_memory.SharedMemory(create=True, size=2 * nbytes)
    names: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(names, mine.name)
    arenas.extend(mine if name == mine.name else shared_memory.SharedMemory(name) for name in names)
    dist.barrier()
    mine.unlink()


def solution(tensor: torch.Tensor) -> torch.Tensor:
    global calls
    nbytes = tensor.numel() * tensor.element_size()
    with lock:
        if not arenas:
            meet(nbytes)
    begin, calls = calls % 2 * nbytes, calls + 1
    parts = [torch.frombuffer(arena.buf, dtype=tensor.dtype, count=tensor.numel(), offset=begin) for arena in arenas]
    parts[dist.get_rank()].copy_(tensor.flatten())
    dist.barrier()
    return torch.stack([part.float() for part in parts]).sum(0).to(tensor.dtype).view(tensor.shape)
