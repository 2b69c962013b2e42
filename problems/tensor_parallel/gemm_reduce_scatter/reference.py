import torch
import torch.distributed as dist


@torch.no_grad()
def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    """Multiplies this rank's slices of the contraction dimension, sums over ranks and keeps this rank's rows.

    Args:
        A_local: (M, k), columns r*k .. (r+1)*k-1 of A (M, K), where k = K / W.
        B_local: (k, N), rows r*k .. (r+1)*k-1 of B (K, N).

    Returns:
        (m, N), rows r*m .. (r+1)*m-1 of A @ B, where m = M / W.
    """
    partial = A_local @ B_local
    C_local = partial.new_empty(partial.shape[0] // dist.get_world_size(), partial.shape[1])
    dist.reduce_scatter_tensor(C_local, partial, op=dist.ReduceOp.SUM)
    return C_local
