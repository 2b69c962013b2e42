import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    H: list[torch.Tensor],
    error: torch.Tensor,
    weights: list[torch.Tensor],
    P: list[torch.Tensor],
    kalman_lambda: float | torch.Tensor,
    kalman_nue: float = 0.9987,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """One step of a layer-wise extended Kalman filter; every rank owns some diagonal blocks.

    Args:
        H: (n_i, 1) per block i of this rank, gradient of the prediction.
        error: 0-dim, this rank's prediction error.
        weights: (n_i, 1) per block; the list's elements are replaced.
        P: (n_i, n_i) per block, covariance; the list's elements are replaced.
        kalman_lambda: memory factor.
        kalman_nue: its decay.

    Returns:
        The updated weights of all ranks, (n, 1) each, in rank order then block order; the list P with this rank's
        updated covariances; the next memory factor, 0-dim.
    """
    dtype, device = weights[0].dtype, weights[0].device
    lam = torch.as_tensor(kalman_lambda, dtype=dtype, device=device)
    err = error.to(dtype=dtype, device=device)

    g = torch.zeros((1, 1), dtype=dtype, device=device)
    for H_i, P_i in zip(H, P, strict=True):
        g += lam + H_i.T @ P_i @ H_i
    if dist.is_initialized():
        dist.all_reduce(g, op=dist.ReduceOp.SUM)
    A = 1.0 / g

    for i, (H_i, P_i) in enumerate(zip(H, P, strict=True)):
        K_i = P_i @ H_i
        weights[i] = weights[i] + A * err * K_i
        P[i] = (1.0 / lam) * (P_i - A * (K_i @ K_i.T))
    lambda_next = kalman_nue * lam + 1.0 - kalman_nue
    if not dist.is_initialized():
        return weights, P, lambda_next

    lengths: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(lengths, [w.numel() for w in weights])
    own = torch.cat([w.flatten() for w in weights]).to(torch.float64)
    gathered = [torch.empty(sum(blocks), dtype=torch.float64, device=device) for blocks in lengths]
    dist.all_gather(gathered, own)
    all_weights = [
        block.reshape(-1, 1).to(dtype)
        for rank_weights, blocks in zip(gathered, lengths, strict=True)
        for block in rank_weights.split(blocks)
    ]
    return all_weights, P, lambda_next
