"""Counterfeits of DistributedIRFFT: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.geometric_spatial.distributed_irfft.reference import solution
from tests.problems.counterfeit import Counterfeit


def lengths_as_stored(x, s, dim, norm="ortho", group=None):
    lengths = (x.shape[dim[0]] * dist.get_world_size(group), 2 * (x.shape[dim[1]] - 1))
    return solution(x, lengths, dim, norm, group)


def self_conjugate_columns_mirrored(x, s, dim, norm="ortho", group=None):
    """Takes the lower half of column 0 from the upper half, as if it were Hermitian."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather([torch.view_as_real(part) for part in parts], torch.view_as_real(x.contiguous()), group=group)
    full = torch.cat(parts, dim=dim[0]).movedim(dim, (-2, -1)).clone()
    H = full.shape[-2]
    full[..., H // 2 + 1 :, 0] = full[..., 1 : (H + 1) // 2, 0].flip(-1).conj()
    mine = full.chunk(len(parts), dim=-2)[dist.get_rank(group)].movedim((-2, -1), dim).contiguous()
    return solution(mine, s, dim, norm, group)


COUNTERFEITS = (
    Counterfeit(0, "lengths as stored", lengths_as_stored, "s always follows from the stored rows and columns"),
    Counterfeit(0, "column 0 mirrored", self_conjugate_columns_mirrored, "the spectrum is always that of a real image"),
)
