import torch
import torch.distributed as dist


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(-second half, first half) of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def gather_sequence(x: torch.Tensor) -> torch.Tensor:
    """Concatenates all ranks' slices along the sequence, dimension 1."""
    slices = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(slices, x)
    return torch.cat(slices, dim=1)


def solution(
    q_local: torch.Tensor, k_local: torch.Tensor, cos_local: torch.Tensor, sin_local: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the queries and keys of this rank's slice of the sequence, and gathers the whole sequence.

    Args:
        q_local: (B, s, Hq, D), queries at positions r*s .. (r+1)*s-1, where s = S / W.
        k_local: (B, s, Hk, D), keys at the same positions.
        cos_local: (B, s, D), cosine factors; all D entries are independent.
        sin_local: (B, s, D), sine factors.

    Returns:
        q_global (B, S, Hq, D) and k_global (B, S, Hk, D), the same on every rank.
    """
    cos, sin = cos_local.unsqueeze(2), sin_local.unsqueeze(2)
    q = q_local * cos + rotate_half(q_local) * sin
    k = k_local * cos + rotate_half(k_local) * sin
    return gather_sequence(q), gather_sequence(k)
