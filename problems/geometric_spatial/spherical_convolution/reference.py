import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def split_shapes(size: int, shares: int) -> list[int]:
    """Lengths of the pieces: all equal but the last, which is shorter, or longer where it would be empty."""
    if shares == 1:
        return [size]
    piece = -(-size // shares)
    if size - piece * (shares - 1) <= 0:
        piece = size // shares
    return [piece] * (shares - 1) + [size - piece * (shares - 1)]


def all_to_all(
    x: torch.Tensor, shares: list[int], dim: int, lengths: list[int], group: dist.ProcessGroup | None
) -> list[torch.Tensor]:
    """Sends slices of x along dim 0 (`shares` long) to the ranks; receives pieces that are `lengths` long along dim."""
    own = shares[dist.get_rank(group)]
    shapes = [(own, *x.shape[1:dim], length, *x.shape[dim + 1 :]) for length in lengths]
    sizes = [math.prod(shape) for shape in shapes]
    received = x.new_empty(sum(sizes))
    slice_size = math.prod(x.shape[1:])
    dist.all_to_all_single(received, x.flatten(), sizes, [share * slice_size for share in shares], group=group)
    return [piece.view(shape) for piece, shape in zip(received.split(sizes), shapes)]


def disco_contraction(field: torch.Tensor, psi: torch.Tensor, nlon_out: int) -> torch.Tensor:
    """Applies the filter at every longitude: one weighted sum of grid points for each position and row of the filter.

    Args:
        field: (Hl, nlon_in, C, B).
        psi: sparse (K, nlat_out, Hl * nlon_in).
        nlon_out: positions, nlon_in // nlon_out apart.

    Returns:
        (nlon_out, K, nlat_out, C, B).
    """
    Hl, nlon_in, C, B = field.shape
    K, nlat_out, _ = psi.shape
    k, o, column = psi.indices()
    position = torch.arange(nlon_out, device=field.device).unsqueeze(1)

    longitude = column % nlon_in
    points = column - longitude + (longitude + position * (nlon_in // nlon_out)) % nlon_in  # (nlon_out, entries)
    first_entry = torch.searchsorted(k * nlat_out + o, torch.arange(K * nlat_out, device=field.device))
    y = F.embedding_bag(
        points.flatten(),
        field.reshape(Hl * nlon_in, C * B),
        offsets=(first_entry + position * len(column)).flatten(),
        per_sample_weights=psi.values().repeat(nlon_out),
        mode="sum",
    )
    return y.view(nlon_out, K, nlat_out, C, B)


@torch.no_grad()
def solution(
    x: torch.Tensor,
    psi: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    nlon_out: int,
    nlon_in: int,
    azimuth_group: dist.ProcessGroup | None = None,
    polar_group: dist.ProcessGroup | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Spherical convolution of a field on a grid of ranks: rank = q * A + a holds latitude block q, longitude block a.

    Args:
        x: (B, Cin, Hl, Wl) float32, this rank's latitudes and longitudes.
        psi: sparse COO (K, nlat_out, Hl * nlon_in), coalesced: the filter on this rank's input latitudes, in column
            latitude * nlon_in + longitude.
        weight: (Cout, Cin / groups, K); every rank uses its own.
        groups: number of groups of channels, each mixed apart.
        nlon_out: longitudes of the output.
        nlon_in: longitudes of the input, a multiple.
        azimuth_group: the A ranks that share latitudes; None means all ranks.
        polar_group: the Q ranks that share longitudes; None means all ranks.
        bias: (Cout,) or None; every rank uses its own.

    Returns:
        (B, Cout, latitudes of q, longitudes of a) float32.
    """
    A = dist.get_world_size(azimuth_group)
    Q, q = dist.get_world_size(polar_group), dist.get_rank(polar_group)
    Cin = x.shape[1]
    channels = split_shapes(Cin, A)

    if A > 1:  # longitudes for channels
        pieces = all_to_all(x.permute(1, 2, 3, 0), channels, 2, split_shapes(nlon_in, A), azimuth_group)
        field = torch.cat([piece.movedim(0, 2) for piece in pieces], dim=1)
    else:
        field = x.permute(2, 3, 1, 0)
    y = disco_contraction(field, psi, nlon_out)
    if Q > 1:
        dist.all_reduce(y, op=dist.ReduceOp.SUM, group=polar_group)
        y = y.split(split_shapes(y.shape[2], Q), dim=2)[q]
    if A > 1:  # and back
        y = torch.cat(all_to_all(y, split_shapes(nlon_out, A), 3, channels, azimuth_group), dim=3)

    grouped = y.unflatten(3, (groups, Cin // groups))  # (columns, K, rows, groups, Cin / groups, B)
    mixing = weight.unflatten(0, (groups, -1))
    out = torch.einsum("wkhgcb,gock->bgohw", grouped, mixing).flatten(1, 2).contiguous()
    return out if bias is None else out.add_(bias.view(-1, 1, 1))
