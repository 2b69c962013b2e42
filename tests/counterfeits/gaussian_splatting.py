"""Counterfeits of GaussianSplatting: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.geometric_spatial.gaussian_splatting.reference import project
from tests.problems.counterfeit import Counterfeit


def nothing_is_culled(means, quats, scales, opacities, colors, viewmats, Ks, width, height, eps2d=0.3, *planes):
    """Gathers all Gaussians and projects them into the own cameras, all of them."""
    C = viewmats.shape[0]
    packed = torch.cat([means, quats, scales, opacities[:, None], colors], dim=1)
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(means)]))
    parts = [packed.new_empty(int(count), packed.shape[1]) for count in counts]
    dist.all_gather(parts, packed)
    found = []
    for part in parts:
        m, q, s, o, c = part.split([3, 4, 3, 1, colors.shape[1]], dim=1)
        radii, means2d, depths, conics = project(m, q, s, viewmats, Ks, width, height, eps2d, 0.0, 1e10)
        values = [radii.int(), means2d, depths, conics, o.squeeze(1).expand(C, -1), c.expand(C, -1, -1)]
        found.append([value.flatten(0, 1) for value in values])
    cameras = torch.cat([torch.arange(C).repeat_interleave(len(part)) for part in parts])
    gaussians = torch.cat([torch.arange(len(part)).repeat(C) for part in parts]) + sum(counts[: dist.get_rank()])
    return cameras, gaussians, *(torch.cat(column) for column in zip(*found, strict=True))


COUNTERFEITS = (Counterfeit(0, "nothing is culled", nothing_is_culled, "every camera sees every Gaussian"),)
