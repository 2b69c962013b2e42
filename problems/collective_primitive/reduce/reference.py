import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    """Sums the tensors of all ranks onto one rank.

    Args:
        tensor: (M, N), this rank's addend.
        dst: rank that receives the sum.

    Returns:
        (M, N), the elementwise sum over ranks on rank dst; a copy of `tensor` elsewhere, as NCCL leaves it.
    """
    out = tensor.clone()
    dist.reduce(out, dst=dst, op=dist.ReduceOp.SUM)
    return out
