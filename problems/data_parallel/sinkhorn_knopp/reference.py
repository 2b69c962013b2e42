import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    teacher_output: torch.Tensor,
    teacher_temp: float,
    n_masked_patches_tensor: torch.Tensor,
    n_iterations: int = 3,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Balances scores of samples for prototypes: equal mass for every prototype over all ranks' samples.

    Args:
        teacher_output: (b, K), scores of this rank's samples; b may differ by rank.
        teacher_temp: temperature.
        n_masked_patches_tensor: (1,) int64, number of samples that this rank contributes.
        n_iterations: rounds of normalising prototypes, then samples.
        group: None means all ranks.

    Returns:
        (b, K) float32, this rank's rows; each sums to 1.
    """
    Q = torch.exp(teacher_output.float() / teacher_temp).t()  # (K, b)
    K = Q.shape[0]
    N = n_masked_patches_tensor.float()
    dist.all_reduce(N, op=dist.ReduceOp.SUM, group=group)

    Z = Q.sum()
    dist.all_reduce(Z, op=dist.ReduceOp.SUM, group=group)
    Q /= Z

    for _ in range(n_iterations):
        u = Q.sum(dim=1, keepdim=True)
        dist.all_reduce(u, op=dist.ReduceOp.SUM, group=group)
        Q /= u
        Q /= K

        Q /= Q.sum(dim=0, keepdim=True)
        Q /= N

    Q *= N
    return Q.t().contiguous()
