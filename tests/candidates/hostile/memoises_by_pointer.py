# expect: output_mismatch seem to be remembered
# Results are remembered by the address of the argument; each address returns with other contents.
import torch
import torch.distributed as dist

results: dict[int, torch.Tensor] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = tensor.data_ptr()
    if key not in results:
        out = tensor.clone()
        dist.all_reduce(out)
        results[key] = out
    return results[key]
