import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    """Turns a tensor split over ranks along the sequence into one split along the heads.

    Args:
        x: sequence-sharded, for example (B, T, h, d): rank s holds positions s*T .. (s+1)*T-1 with all heads.
        seq_dim: dimension of the sequence.
        head_dim: dimension of the heads, h of them, a multiple of W.
        group: the ranks that share the sequence; None means all.
        unpadded_dim_size: length U of the sequence before padding; 0 means unknown.

    Returns:
        For example (B, W*T, h/W, d): the whole sequence with heads r*h/W .. (r+1)*h/W-1. Where U is not a multiple of
        W, only the first U positions.
    """
    W = dist.get_world_size(group)
    send = torch.stack(x.chunk(W, dim=head_dim))  # (W, ...): piece j goes to rank j
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    out = torch.cat(received.unbind(0), dim=seq_dim)
    if unpadded_dim_size and unpadded_dim_size % W != 0:
        out = out.narrow(seq_dim, 0, unpadded_dim_size)
    return out
