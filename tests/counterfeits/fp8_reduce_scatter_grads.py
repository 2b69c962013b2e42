"""Counterfeits of FP8ReduceScatterGrads: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit

LARGEST = 448.0


def averaged_slice(rounded):
    out = rounded.new_empty(rounded.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(out, rounded)
    return out / dist.get_world_size()


def new_history(grads, history):
    return torch.cat([history[1:], grads.abs().max().view(1)])


def rounded_to(grads, scale):
    return ((grads.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(grads.dtype)


def current_maximum(grads, history):
    return averaged_slice(rounded_to(grads, grads.abs().max().float() / LARGEST)), new_history(grads, history)


def history_not_shifted(grads, history):
    shifted = torch.cat([history[:-1], grads.abs().max().view(1)])
    return averaged_slice(rounded_to(grads, shifted.max().float() / LARGEST)), shifted


def no_subnormals(grads, history):
    kept = new_history(grads, history)
    scale = kept.max().float() / LARGEST
    normal = torch.where(grads.float().abs() / scale < 2.0**-6, 0.0, grads)
    return averaged_slice(rounded_to(normal.to(grads.dtype), scale)), kept


COUNTERFEITS = (
    Counterfeit(0, "scale of the current maximum", current_maximum, "past maxima of 1e-8 never decide the scale"),
    Counterfeit(0, "history not shifted", history_not_shifted, "all past maxima are alike"),
    Counterfeit(1, "no subnormals", no_subnormals, "the few subnormal 8-bit floats lie below the tolerance of 1e-2"),
)
