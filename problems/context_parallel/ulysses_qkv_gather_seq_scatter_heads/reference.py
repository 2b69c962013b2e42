import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int | None = None,
    restore_shape: bool = True,
) -> torch.Tensor:
    """Turns a fused Q|K|V tensor split over ranks along the sequence into one split along the columns of Q, K and V.

    Args:
        qkv_tensor: (B, T, 3*E) or (T, 3*E); rank s holds positions s*T .. (s+1)*T-1. The last dimension is Q, K, V of
            E columns each, E a multiple of W.
        seq_dim: dimension of the sequence, not the last.
        group: the ranks that share the sequence; None means all.
        unpadded_dim_size: length U of the sequence before padding; None or 0 means unknown.
        restore_shape: whether the last two dimensions of the result are joined.

    Returns:
        (B, W*T, 3, E/W) or (W*T, 3, E/W), columns r*E/W .. (r+1)*E/W-1 of Q, of K and of V; with restore_shape
        (B, W*T, 3*E/W) or (W*T, 3*E/W). Where U is not a multiple of W, only the first U positions.
    """
    W = dist.get_world_size(group)
    qkv = qkv_tensor.unflatten(-1, (3, -1))
    send = torch.stack(qkv.chunk(W, dim=-1))  # (W, ..., 3, E/W): piece j goes to rank j
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    out = torch.cat(received.unbind(0), dim=seq_dim)
    if restore_shape:
        out = out.flatten(-2)
    if unpadded_dim_size and unpadded_dim_size % W != 0:
        out = out.narrow(seq_dim, 0, unpadded_dim_size)
    return out
