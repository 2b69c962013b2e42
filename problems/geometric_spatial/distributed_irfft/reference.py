from collections.abc import Sequence

import torch
import torch.distributed as dist


def distributed_hermitian_extension(
    x: torch.Tensor, dim0: int, dim1: int, n1: int, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """This rank's rows of the full spectrum, n1 columns, of which x holds the first; dim1 is the last axis.

    F[h, p] = conj(X[(H - h) mod H, n1 - p]) for columns that x lacks, and 0 where it lacks that one too
    """
    Wc, Hl = x.shape[dim1], x.shape[dim0]
    padded = torch.nn.functional.pad(x, (0, n1 - Wc))
    mirrored = padded.narrow(dim1, 1, n1 - Wc).flip(dim1).conj()
    padded.narrow(dim1, Wc, n1 - Wc).copy_(mirrored)

    parts = padded.new_empty(dist.get_world_size(group), *padded.shape)
    dist.all_gather_into_tensor(torch.view_as_real(parts), torch.view_as_real(padded), group=group)
    full = parts.movedim(0, dim0).flatten(dim0, dim0 + 1)
    below = full.narrow(dim0, 1, full.shape[dim0] - 1).narrow(dim1, Wc, n1 - Wc)
    below.copy_(below.flip(dim0))
    return full.narrow(dim0, dist.get_rank(group) * Hl, Hl)


@torch.no_grad()
def solution(
    x: torch.Tensor,
    s: Sequence[int] | None,
    dim: Sequence[int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """2-D inverse FFT of half a spectrum that is sharded by rows; a real image that is sharded by columns.

    Args:
        x: complex64; rows r*Hl .. (r+1)*Hl-1 along axis dim[0], and columns 0 .. Wc-1 of the spectrum along dim[1].
        s: (n0, n1), lengths of the image; None means (Hl, 2 * (Wc - 1)), Hl being the local number of rows.
        dim: (dim0, dim1); dim1 is the last axis and is transformed first.
        norm: "ortho", "forward" or "backward", of each of the two transforms.
        group: the ranks that share the data; None means all.

    Returns:
        float32, of length n0 along dim0, and n1 / P along dim1: columns r*n1/P .. (r+1)*n1/P-1.
    """
    P = dist.get_world_size(group)
    dim0, dim1 = (axis % x.dim() for axis in dim)
    n0, n1 = (x.shape[dim0], 2 * (x.shape[dim1] - 1)) if s is None else s
    if n1 % P:
        raise ValueError(f"{n1} columns cannot be shared evenly by {P} ranks")

    spectrum = distributed_hermitian_extension(x, dim0, dim1, n1, group)
    G = torch.fft.ifft(spectrum, n=n1, dim=dim1, norm=norm)

    send = G.unflatten(dim1, (P, -1)).movedim(dim1, 0).contiguous()
    receive = torch.empty_like(send)
    dist.all_to_all_single(torch.view_as_real(receive), torch.view_as_real(send), group=group)
    columns = receive.movedim(0, dim0).flatten(dim0, dim0 + 1)

    return torch.fft.ifft(columns, n=n0, dim=dim0, norm=norm).real.contiguous()
