"""Counterfeits of FP8AllGatherParams: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit

LARGEST = 448.0


def gathered(rounded):
    out = rounded.new_empty(dist.get_world_size() * rounded.numel())
    dist.all_gather_into_tensor(out, rounded)
    return out


def new_history(shard, history):
    return torch.cat([history[1:], shard.abs().max().view(1)])


def rounded_to(shard, scale):
    return ((shard.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(shard.dtype)


def current_maximum(shard, history):
    return gathered(rounded_to(shard, shard.abs().max().float() / LARGEST)), new_history(shard, history)


def history_not_shifted(shard, history):
    shifted = torch.cat([history[:-1], shard.abs().max().view(1)])
    return gathered(rounded_to(shard, shifted.max().float() / LARGEST)), shifted


def no_subnormals(shard, history):
    kept = new_history(shard, history)
    scale = kept.max().float() / LARGEST
    normal = torch.where(shard.float().abs() / scale < 2.0**-6, 0.0, shard)
    return gathered(rounded_to(normal.to(shard.dtype), scale)), kept


COUNTERFEITS = (
    Counterfeit(0, "scale of the current maximum", current_maximum, "past maxima of 1e-8 never decide the scale"),
    Counterfeit(0, "history not shifted", history_not_shifted, "all past maxima are alike"),
    Counterfeit(1, "no subnormals", no_subnormals, "the few subnormal 8-bit floats lie below the tolerance of 1e-2"),
)
