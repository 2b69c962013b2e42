"""Counterfeits of RingAttentionBackwardDP: what the published check takes for right."""

from typing import Any

import torch

from pkb_gym.problems.context_parallel.ring_attention_backward_dp.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def with_its_own_logsumexp(*args: Any) -> tuple[torch.Tensor, ...]:
    """Ignores softmax_lse and sums over the rank's own keys alone."""
    dout, q, k, v, out, _, softmax_scale, causal, cp_group, dp_group = args
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    lse = (torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * scale).logsumexp(-1)
    return reference(dout, q, k, v, out, lse, softmax_scale, causal, cp_group, dp_group)


def never_masked(*args: Any) -> tuple[torch.Tensor, ...]:
    """Ignores causal."""
    *tensors, softmax_scale, _, cp_group, dp_group = args
    return reference(*tensors, softmax_scale, False, cp_group, dp_group)


COUNTERFEITS = (
    Counterfeit(0, "recomputed local logsumexp", with_its_own_logsumexp, why="softmax_lse covers own positions only"),
    Counterfeit(0, "never masked", never_masked, why="causal is never True"),
)
NOT_SHOWN: dict[int, str] = {}
