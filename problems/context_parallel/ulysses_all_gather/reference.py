import torch
import torch.distributed as dist


@torch.no_grad()
def solution(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Gathers the tensors of all ranks, one after another along the first dimension.

    Args:
        x: (D0, ...), at least 1-D, same shape on all ranks.
        group: the ranks that gather; None means all.

    Returns:
        (W * D0, ...), rows s*D0 .. (s+1)*D0-1 are rank s's tensor; the same on every rank.
    """
    out = x.new_empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out
