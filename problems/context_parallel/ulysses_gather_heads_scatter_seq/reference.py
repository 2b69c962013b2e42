import torch
import torch.distributed as dist


@torch.no_grad()
def solution(x: torch.Tensor, seq_dim: int, head_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Turns a tensor split over ranks along the heads into one split along the sequence, zero-padded to fit.

    Args:
        x: head-sharded, for example (B, T, h, d): rank s holds heads s*h .. (s+1)*h-1 of the whole sequence.
        seq_dim: dimension of the sequence; T need not be a multiple of W.
        head_dim: dimension of the heads.
        group: the ranks that share the heads; None means all.

    Returns:
        For example (B, c, W*h, d) with c = ceil(T / W): positions r*c .. (r+1)*c-1 with all heads, zero from T on.
    """
    W = dist.get_world_size(group)
    missing = -x.shape[seq_dim] % W
    if missing:
        zeros = list(x.shape)
        zeros[seq_dim] = missing
        x = torch.cat([x, x.new_zeros(zeros)], dim=seq_dim)
    send = torch.stack(x.chunk(W, dim=seq_dim))  # (W, ...): piece j goes to rank j
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(received.unbind(0), dim=head_dim)
