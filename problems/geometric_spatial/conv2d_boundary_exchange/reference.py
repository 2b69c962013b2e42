import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int = 1,
    padding: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """2-D convolution of an image that is sharded by rows; `padding` rows come from each neighbour.

    Args:
        x: (B, C, Hl, W), this rank's rows.
        weight: (Co, C, kh, kw); every rank uses its own.
        bias: (Co,) or None; every rank uses its own.
        stride: along both axes; every rank begins at its first extended row.
        padding: rows exchanged on each side, zeros at the image's border, and zero columns on each side.
        group: the ranks that share the image, top to bottom; None means all.

    Returns:
        (B, Co, H', W') with H' = (Hl + 2 * padding - kh) // stride + 1, and W' likewise.
    """
    P, r = dist.get_world_size(group), dist.get_rank(group)
    if padding == 0 or P == 1:
        return F.conv2d(x, weight, bias, stride, padding)

    boundary = torch.stack([x[:, :, :padding], x[:, :, -padding:]])
    boundaries = boundary.new_zeros(P + 2, *boundary.shape)  # zeros beyond the image's top and bottom
    dist.all_gather_into_tensor(boundaries[1:-1], boundary, group=group)
    extended = torch.cat([boundaries[r, 1], x, boundaries[r + 2, 0]], dim=2)
    return F.conv2d(extended, weight, bias, stride, padding=(0, padding))
