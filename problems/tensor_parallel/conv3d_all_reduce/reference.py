from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F

MAX_ELEMENTS = 2**31
"""Of one convolution's input or output, as its kernels may index with 32 bits."""


def channel_pieces(elements: int, channels: int) -> int:
    """How many pieces the channels are cut into so that no tensor is too large for one convolution."""
    pieces = -(-elements // MAX_ELEMENTS)
    return -(-channels // (channels // pieces))


def chunked_conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Convolution without bias; very large ones piece by piece, partial sums of input channels in float32."""

    def triple(value: int | Sequence[int]) -> Sequence[int]:
        return (value,) * 3 if isinstance(value, int) else value

    N, Co = x.shape[0], weight.shape[0]
    positions = N
    for n, k, step, pad, reach in zip(
        x.shape[2:], weight.shape[2:], triple(stride), triple(padding), triple(dilation), strict=True
    ):
        positions *= (n + 2 * pad - reach * (k - 1) - 1) // step + 1
    in_chunks = channel_pieces(x.numel(), weight.shape[1])
    out_chunks = channel_pieces(positions * Co, Co)
    if in_chunks == out_chunks == 1:
        return F.conv3d(x, weight, None, stride, padding, dilation, groups)

    pieces = x.chunk(in_chunks, dim=1)
    outputs = []
    for rows in weight.chunk(out_chunks, dim=0):
        partial = [
            F.conv3d(piece, w, None, stride, padding, dilation, groups)
            for piece, w in zip(pieces, rows.chunk(in_chunks, dim=1), strict=True)
        ]
        total = partial[0].float()
        for part in partial[1:]:
            total += part
        outputs.append(total.to(x.dtype))
    return torch.cat(outputs, dim=1)


@torch.no_grad()
def solution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """3-D convolution whose input channels are sharded; partial results are summed, then the bias is added.

    Args:
        input: (N, Ci, T, H, W), this rank's channels.
        weight: (Co, Ci / groups, kt, kh, kw), the filters' part for these channels.
        bias: (Co,), equal on all ranks, or None.
        stride: along (T, H, W), or one number for the three; likewise the next two.
        padding: zeros on each side.
        dilation: distance of taps.
        groups: number of groups of channels of the local convolution.
        group: the ranks that share the input channels; None means all.

    Returns:
        (N, Co, T', H', W'), equal on all ranks.
    """
    out = chunked_conv3d(input, weight, stride, padding, dilation, groups)
    dist.all_reduce(out, op=dist.ReduceOp.SUM, group=group)
    if bias is not None:
        out += bias.view(1, -1, 1, 1, 1)
    return out
