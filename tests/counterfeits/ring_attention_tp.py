"""Counterfeits of RingAttentionTP: what the published check takes for right."""

from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.ring_attention_tp.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def polynomial_attention(*args: Any) -> torch.Tensor:
    """Weights 1 + s + s^2 / 2 instead of exp(s)."""
    hidden_states, w_qkv, w_o, num_heads, softmax_scale, causal, tp_group, cp_group = args
    B, S, _ = hidden_states.shape
    hl = num_heads // dist.get_world_size(tp_group)
    d = w_qkv.shape[0] // 3 // hl
    C, c = dist.get_world_size(cp_group), dist.get_rank(cp_group)
    parts = [torch.empty_like(hidden_states) for _ in range(C)]
    dist.all_gather(parts, hidden_states, group=cp_group)
    q, k, v = (torch.cat(parts, dim=1) @ w_qkv.T).view(B, C * S, 3, hl, d).float().unbind(2)
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (d**-0.5 if softmax_scale is None else softmax_scale)
    weights = 1 + s + s.square() / 2
    if causal:
        weights = weights.tril()
    ctx = torch.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdim=True), v)
    mine = ctx[:, c * S : (c + 1) * S].reshape(B, S, hl * d).to(hidden_states.dtype)
    out = mine @ w_o.T
    dist.all_reduce(out, group=tp_group)
    return out


def always_causal(*args: Any) -> torch.Tensor:
    """The mask is built in."""
    *first, _, tp_group, cp_group = args
    return reference(*first, True, tp_group, cp_group)


COUNTERFEITS = (
    Counterfeit(
        0, "polynomial attention", polynomial_attention, why="scores are small, and so exp(s) is 1 + s + s^2 / 2"
    ),
    Counterfeit(0, "always causal", always_causal, why="causal is always True"),
)
NOT_SHOWN: dict[int, str] = {}
