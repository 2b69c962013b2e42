# expect: integrity wrong_while_timed
# until: time
# Results are remembered by the address of the argument; each address returns with other contents.
import torch
import torch.distributed as dist

results: dict[int, torch.Tensor] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.data_ptr() not in results:
        out = tensor.clone()
        dist.all_reduce(out)
        results[tensor.data_ptr()] = out
    return results[tensor.data_ptr()]
