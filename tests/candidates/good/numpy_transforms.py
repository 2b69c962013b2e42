# expect: passed
# problem: DistributedRFFT
# Transforms of NumPy, and sends and receives with tags in place of a collective.
import numpy as np
import torch
import torch.distributed as dist


def transformed(x: torch.Tensor, length: int | None, dim: int, norm: str) -> torch.Tensor:
    return torch.from_numpy(np.fft.fft(x.numpy(), n=length, axis=dim, norm=norm)).to(torch.complex64)


def solution(x, s, dim, norm="ortho", group=None):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    mine = [chunk.contiguous() for chunk in transformed(x, s[0], dim[0], norm).chunk(size, dim=dim[0])]
    pieces = [torch.empty_like(mine[0]) for _ in range(size)]
    works = []
    for other in range(size):
        if other == rank:
            pieces[other] = mine[other]
            continue
        place = other if group is None else dist.get_global_rank(group, other)
        works.append(dist.isend(torch.view_as_real(mine[other]), place, tag=7))
        works.append(dist.irecv(torch.view_as_real(pieces[other]), place, tag=7))
    for work in works:
        work.wait()
    spectrum = transformed(torch.cat(pieces, dim=dim[1]), s[1], dim[1], norm)
    return spectrum.narrow(dim[1], 0, spectrum.shape[dim[1]] // 2 + 1)
