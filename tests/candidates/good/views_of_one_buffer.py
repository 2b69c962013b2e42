# expect: passed
# problem: AllGather
# until: time
# The same part of one larger buffer is returned by every call: of inference mode, neither dense nor at its beginning.
import torch
import torch.distributed as dist

buffer = None


@torch.inference_mode()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    global buffer
    world_size, (rows, columns) = dist.get_world_size(), tensor.shape
    if buffer is None:
        buffer = torch.full((columns + 5, world_size * rows + 3), 7, dtype=tensor.dtype)
    inside = buffer.T[1:-2, 2:-3].unflatten(0, (world_size, rows))
    gathered = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(gathered, -tensor)
    for rank, block in enumerate(gathered):
        inside[rank] = -block
    return inside
