from collections.abc import Sequence

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    x: torch.Tensor,
    s: Sequence[int | None],
    dim: Sequence[int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """2-D FFT of real data that is sharded along its second axis; half of the spectrum, sharded along the first axis.

    Args:
        x: shards of length Wl along axis dim[1]: this rank holds columns r*Wl .. (r+1)*Wl-1; real or complex.
        s: (n0, n1), transform lengths; data are padded with zeros or cropped at the end; None keeps the length found.
        dim: (dim0, dim1); dim0 is transformed first.
        norm: "ortho", "forward" or "backward", of each of the two transforms.
        group: the ranks that share the data; None means all.

    Returns:
        complex, of length n0 / P along dim0, frequencies r*n0/P .. (r+1)*n0/P-1, and n1 // 2 + 1 along dim1.
    """
    P = dist.get_world_size(group)
    dim0, dim1 = dim
    A = torch.fft.fft(x, n=s[0], dim=dim0, norm=norm)
    n0 = A.shape[dim0]
    if n0 % P:
        raise ValueError(f"{n0} rows cannot be shared evenly by {P} ranks")

    send = torch.stack(A.chunk(P, dim=dim0))
    receive = torch.empty_like(send)
    dist.all_to_all_single(torch.view_as_real(receive), torch.view_as_real(send), group=group)
    rows = torch.cat(list(receive), dim=dim1)

    Y = torch.fft.fft(rows, n=s[1], dim=dim1, norm=norm)
    return Y.narrow(dim1, 0, Y.shape[dim1] // 2 + 1).contiguous()
