import torch
import torch.distributed as dist


def solution(local_hidden_states: torch.Tensor, local_weight: torch.Tensor, variance_epsilon: float) -> torch.Tensor:
    """RMS normalisation of rows whose hidden dimension is split over the ranks.

    Args:
        local_hidden_states: (..., n), columns r*n .. (r+1)*n-1 of the rows.
        local_weight: (n,), the gain of these columns.
        variance_epsilon: added to the mean square over all n * W columns.

    Returns:
        (..., n), this rank's columns of the normalised rows.
    """
    hidden = local_hidden_states.to(torch.float32)
    mean_square = hidden.square().sum(dim=-1, keepdim=True)
    dist.all_reduce(mean_square, op=dist.ReduceOp.SUM)
    mean_square /= hidden.shape[-1] * dist.get_world_size()
    hidden = hidden * torch.rsqrt(mean_square + variance_epsilon)
    return local_weight * hidden.to(local_hidden_states.dtype)
