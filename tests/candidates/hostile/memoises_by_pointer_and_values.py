# expect: output_mismatch seem to be remembered
# Results are remembered by the address of the argument and its first value; both return with others behind it.
import torch
import torch.distributed as dist

results: dict[tuple[int, float], torch.Tensor] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = (tensor.data_ptr(), tensor.flatten()[0].item())
    if key not in results:
        out = tensor.clone()
        dist.all_reduce(out)
        results[key] = out
    return results[key]
