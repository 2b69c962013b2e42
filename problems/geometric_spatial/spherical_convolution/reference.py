import torch
import torch.distributed as dist


def split_shapes(size: int, shares: int) -> list[int]:
    """Lengths of the pieces: all equal but the last, which is shorter, or longer where it would be empty."""
    if shares == 1:
        return [size]
    piece = -(-size // shares)
    if size - piece * (shares - 1) <= 0:
        piece = size // shares
    return [piece] * (shares - 1) + [size - piece * (shares - 1)]


def transpose(
    x: torch.Tensor, split_dim: int, cat_dim: int, cat_shapes: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    """All-to-all: x is cut along split_dim, pieces from all ranks (cat_shapes long) are joined along cat_dim."""
    pieces = x.split(split_shapes(x.shape[split_dim], dist.get_world_size(group)), dim=split_dim)
    shapes = []
    for length in cat_shapes:
        shape = list(pieces[dist.get_rank(group)].shape)
        shape[cat_dim] = length
        shapes.append(torch.Size(shape))
    send = torch.cat([piece.flatten() for piece in pieces])
    receive = x.new_empty(sum(shape.numel() for shape in shapes))
    receive_sizes = [shape.numel() for shape in shapes]
    dist.all_to_all_single(receive, send, receive_sizes, [piece.numel() for piece in pieces], group=group)
    parts = receive.split(receive_sizes)
    return torch.cat([part.view(shape) for part, shape in zip(parts, shapes)], dim=cat_dim)


def disco_contraction(x: torch.Tensor, psi: torch.Tensor, nlon_out: int) -> torch.Tensor:
    """Applies the filter at every longitude.

    Args:
        x: (B, C, Hl, nlon_in).
        psi: sparse (K, nlat_out, Hl * nlon_in).
        nlon_out: positions, nlon_in // nlon_out apart.

    Returns:
        (B, C, K, nlat_out, nlon_out).
    """
    B, C, Hl, nlon_in = x.shape
    K, nlat_out, _ = psi.shape
    step = nlon_in // nlon_out
    field = x.view(B * C, Hl, nlon_in)
    y = x.new_empty(K, nlat_out, B * C, nlon_out)
    for p in range(nlon_out):
        columns = field.reshape(B * C, Hl * nlon_in).T
        y[..., p] = torch.bmm(psi, columns.expand(K, -1, -1))
        field = field.roll(-step, dims=-1)
    return y.view(K, nlat_out, B, C, nlon_out).permute(2, 3, 0, 1, 4).contiguous()


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
        groups: of channels, for the mixing.
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

    if A > 1:
        x = transpose(x, split_dim=1, cat_dim=3, cat_shapes=split_shapes(nlon_in, A), group=azimuth_group)
    y = disco_contraction(x.contiguous(), psi, nlon_out)
    if Q > 1:
        dist.all_reduce(y, op=dist.ReduceOp.SUM, group=polar_group)
        y = y.split(split_shapes(y.shape[3], Q), dim=3)[q]
    if A > 1:
        y = transpose(y, split_dim=4, cat_dim=1, cat_shapes=split_shapes(Cin, A), group=azimuth_group)

    B, _, K, rows, columns = y.shape
    grouped = y.reshape(B, groups, Cin // groups, K, rows, columns)
    mixing = weight.view(groups, -1, Cin // groups, K)
    out = torch.einsum("bgckhw,gock->bgohw", grouped, mixing).reshape(B, -1, rows, columns)
    return out if bias is None else out + bias.view(1, -1, 1, 1)
