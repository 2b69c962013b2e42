import torch
import torch.distributed as dist


@torch.no_grad()
def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Gathers the column-sharded left matrix in transposed layout, then multiplies it by this rank's right matrix.

    Args:
        A_local: (M, Kl), columns r*Kl .. (r+1)*Kl-1 of A, where Kl = K / W.
        B: (K, N), this rank's right matrix.

    Returns:
        (M, N), A @ B, as the transposed view of an (N, M) matrix.
    """
    A_t = A_local.new_empty(B.shape[0], A_local.shape[0])
    dist.all_gather_into_tensor(A_t, A_local.T.contiguous())
    return (B.T @ A_t).T
