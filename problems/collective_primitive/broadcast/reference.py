import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Copies the source rank's tensor to every rank.

    Args:
        tensor: (M, N), the data on rank src; elsewhere only shape and dtype matter.
        src: rank of the source.

    Returns:
        (M, N), rank src's tensor, the same on every rank.
    """
    out = tensor.clone()
    dist.broadcast(out, src=src)
    return out
