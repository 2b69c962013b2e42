# expect: output_mismatch seem to be remembered
# Results are remembered by the first values of the argument; they return with others behind them.
import torch
import torch.distributed as dist

results: dict[tuple[float, ...], torch.Tensor] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = tuple(tensor.flatten()[:4].tolist())
    if key not in results:
        out = tensor.clone()
        dist.all_reduce(out)
        results[key] = out
    return results[key]
