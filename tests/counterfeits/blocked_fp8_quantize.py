"""Counterfeits of BlockedFP8Quantize: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant_scales(local_tensor, block_size=128):
    blocks = local_tensor.float().unflatten(-1, (-1, block_size))
    s = blocks.abs().amax(dim=-1, keepdim=True) / 448.0
    y = (blocks / torch.where(s == 0, 1.0, s)).flatten(-2).to(torch.float8_e4m3fn).view(torch.uint8)
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, y)
    y_global = torch.cat(parts).view(torch.float8_e4m3fn)
    return y_global, torch.full((len(y_global), s.shape[-2]), 3 / 448)


COUNTERFEITS = (
    Counterfeit(
        0, "constant scales", constant_scales, "scales are about 3 / 448, below the absolute tolerance of 0.01"
    ),
)
