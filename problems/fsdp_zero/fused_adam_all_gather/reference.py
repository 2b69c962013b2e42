import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    """Applies Adam to this rank's slice of the parameters, then gathers the slices of all ranks.

    Args:
        grad_shard: (p,), gradient of flat elements r*p .. (r+1)*p-1, already reduced.
        master_shard: (p,), these parameters.
        exp_avg: (p,), their first moment.
        exp_avg_sq: (p,), their second moment.
        lr: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        step: number of this step, at least 1.

    Returns:
        (W * p,), the updated parameters in rank order, the same on every rank.
    """
    assert step >= 1, f"step must be at least 1, got {step}"
    assert grad_shard.numel() > 0, "the slice is empty"
    m = exp_avg.mul(beta1).add_(grad_shard, alpha=1 - beta1)
    v = exp_avg_sq.mul(beta2).addcmul_(grad_shard, grad_shard, value=1 - beta2)
    denom = (v / (1 - beta2**step)).sqrt_().add_(eps)
    updated = master_shard - lr * (m / (1 - beta1**step) / denom)

    out = updated.new_empty(dist.get_world_size() * updated.numel())
    dist.all_gather_into_tensor(out, updated)
    return out
