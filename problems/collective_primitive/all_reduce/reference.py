import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Sums the tensors of all ranks.

    Args:
        tensor: (M, N), this rank's addend.

    Returns:
        (M, N), the elementwise sum over ranks, the same on every rank.
    """
    out = tensor.clone()
    dist.all_reduce(out, op=dist.ReduceOp.SUM)
    return out
