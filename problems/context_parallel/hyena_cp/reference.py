import torch
import torch.distributed as dist


def to_channel_shard(x_seq: torch.Tensor, group: dist.ProcessGroup | None, zigzag: bool) -> torch.Tensor:
    """Re-shards (B, C, l), this rank's part of time, to (B, Cr, T), its channels over all of time in natural order."""
    W = dist.get_world_size(group)
    send = torch.stack(x_seq.chunk(W, dim=1))  # (W, B, Cr, l): block d goes to rank d
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    x = torch.cat(received.unbind(0), dim=-1)
    if zigzag:  # chunk 2q of the buffer is chunk q of time, chunk 2q+1 is chunk 2W-1-q
        early, late = x.unflatten(-1, (W, 2, -1)).unbind(-2)
        x = torch.cat([early, late.flip(-2)], dim=-2).flatten(-2)
    return x


def to_sequence_shard(z: torch.Tensor, group: dist.ProcessGroup | None, zigzag: bool) -> torch.Tensor:
    """Re-shards (B, Cr, T) to (B, l, C), this rank's part of time for all channels, in the layout of the inputs."""
    W = dist.get_world_size(group)
    if zigzag:
        early, late = z.unflatten(-1, (2, W, -1)).unbind(-3)
        z = torch.stack([early, late.flip(-2)], dim=-2).flatten(-3)
    send = torch.stack(z.chunk(W, dim=-1))  # (W, B, Cr, l)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(received.unbind(0), dim=1).transpose(1, 2).contiguous()


def fft_conv(u: torch.Tensor, f: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Convolves u (B, Cr, T) with f (Cr, Lf), cut or zero-padded to 2T taps, in float32, and adds u * bias (Cr,)."""
    T = u.shape[-1]
    spectrum = torch.fft.rfft(u.float(), n=2 * T) * torch.fft.rfft(f.float(), n=2 * T)
    y = torch.fft.irfft(spectrum, n=2 * T)[..., :T]
    return (y + u.float() * bias.float()[:, None]).to(u.dtype)


@torch.no_grad()
def solution(
    x1_seq: torch.Tensor,
    x2_seq: torch.Tensor,
    v_seq: torch.Tensor,
    h: torch.Tensor,
    conv_bias: torch.Tensor,
    num_groups: int,
    group_dim: int,
    group: dist.ProcessGroup | None = None,
    with_zigzag_splitting: bool = True,
) -> torch.Tensor:
    """Hyena operator x1 * (conv(x2 * v, h) + bias * x2 * v) on a sequence that is split over the ranks.

    With zigzag splitting time is cut into 2W chunks and rank r holds chunk r, then chunk 2W-1-r; otherwise it holds
    positions r*l .. (r+1)*l-1. The whole sequence has T = W*l positions.

    Args:
        x1_seq: (B, C, l), output gate.
        x2_seq: (B, C, l), input gate.
        v_seq: (B, C, l), values.
        h: (num_groups, Lf), causal filters, equal on all ranks; channel c is convolved with row c // group_dim.
        conv_bias: (C,), skip weights, equal on all ranks.
        num_groups: rows of h, a multiple of W.
        group_dim: channels per filter; num_groups * group_dim = C.
        group: the ranks that share the sequence; None means all.
        with_zigzag_splitting: how time is laid out over the ranks.

    Returns:
        (B, l, C), this rank's part of time, in the layout and dtype of x1_seq.
    """
    W, r = dist.get_world_size(group), dist.get_rank(group)
    x1 = to_channel_shard(x1_seq, group, with_zigzag_splitting)
    x2 = to_channel_shard(x2_seq, group, with_zigzag_splitting)
    v = to_channel_shard(v_seq, group, with_zigzag_splitting)

    rows = num_groups // W
    f = h[r * rows : (r + 1) * rows].repeat_interleave(group_dim, dim=0)  # (Cr, Lf)
    Cr = x1.shape[1]
    y = fft_conv(x2 * v, f, conv_bias[r * Cr : (r + 1) * Cr])
    return to_sequence_shard(x1 * y, group, with_zigzag_splitting)
