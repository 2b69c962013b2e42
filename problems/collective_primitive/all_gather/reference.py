import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Gathers the tensors of all ranks, stacked in rank order.

    Args:
        tensor: (M, N), this rank's block.

    Returns:
        (W, M, N), slice s is rank s's block; the same on every rank.
    """
    out = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather_into_tensor(out, tensor)
    return out
