import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Cuts x into one piece per rank along one dimension, exchanges the pieces, and joins them along another.

    Args:
        x: at least 2-D, same shape on all ranks; W divides its size along scatter_dim.
        scatter_dim: dimension that is cut into W pieces, piece j for rank j; negative counts from the last.
        gather_dim: dimension along which received pieces are joined, in rank order; may equal scatter_dim.
        group: the ranks that exchange; None means all.

    Returns:
        The shape of x with size / W along scatter_dim, then size * W along gather_dim.
    """
    W = dist.get_world_size(group)
    scatter_dim, gather_dim = scatter_dim % x.dim(), gather_dim % x.dim()
    send = x.unflatten(scatter_dim, (W, -1)).movedim(scatter_dim, 0).contiguous()  # (W, ...): piece j goes to rank j
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.movedim(0, gather_dim).flatten(gather_dim, gather_dim + 1)
