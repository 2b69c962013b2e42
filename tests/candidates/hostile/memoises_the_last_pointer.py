# expect: output_mismatch seem to be remembered
# The last result is remembered by the address of its argument, which returns at once with other contents.
import torch
import torch.distributed as dist

last: tuple[int, torch.Tensor] | None = None


def solution(tensor: torch.Tensor) -> torch.Tensor:
    global last
    if last is None or last[0] != tensor.data_ptr():
        out = tensor.clone()
        dist.all_reduce(out)
        last = tensor.data_ptr(), out
    return last[1]
