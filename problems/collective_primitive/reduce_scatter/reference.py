import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Sums the tensors of all ranks and keeps this rank's row block of the sum.

    Args:
        tensor: (W * M, N), this rank's addend, W row blocks one after another.

    Returns:
        (M, N), rows r*M .. (r+1)*M-1 of the elementwise sum over ranks.
    """
    rows = tensor.shape[0] // dist.get_world_size()
    out = tensor.new_empty(rows, *tensor.shape[1:])
    dist.reduce_scatter_tensor(out, tensor, op=dist.ReduceOp.SUM)
    return out
