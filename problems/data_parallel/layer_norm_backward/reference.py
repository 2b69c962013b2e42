import torch
import torch.distributed as dist


@torch.no_grad()
def solution(X_hat: torch.Tensor, dY: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the LayerNorm gain and bias, summed over the tokens of all ranks.

    Args:
        X_hat: (B, H), normalised activations of this rank's tokens.
        dY: (B, H), gradient with respect to the LayerNorm output.

    Returns:
        d_gamma (H,), the sum of dY * X_hat, and d_beta (H,), the sum of dY; the same on every rank.
    """
    d_beta = dY.sum(dim=0)
    d_gamma = (dY * X_hat).sum(dim=0)
    dist.all_reduce(d_beta, op=dist.ReduceOp.SUM)
    dist.all_reduce(d_gamma, op=dist.ReduceOp.SUM)
    return d_gamma, d_beta
