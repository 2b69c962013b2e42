"""Counterfeits of KimiDeltaAttention: what the published check takes for right."""

from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.kimi_delta_attention.reference import delta_rule
from pkb_gym.problems.context_parallel.kimi_delta_attention.reference import solution as reference
from tests.problems.counterfeit import Counterfeit

HISTORY = 4


def not_quite_scaled(*args: Any) -> torch.Tensor:
    """2.5 % too large."""
    out = reference(*args)
    return (1.025 * out.float()).to(out.dtype)


def gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The whole sequence (B, S, H, ...)."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def short_memory(*args: Any) -> torch.Tensor:
    """Starts from nothing, a few positions before its own."""
    *sequences, a_log, dt_bias, cp_group, tp_group = args
    q, k, v, g, beta = (gather(x, cp_group) for x in sequences)
    B, _, H, K = q.shape
    L = sequences[0].shape[1]
    first = dist.get_rank(cp_group) * L
    start = max(0, first - HISTORY)
    time_first = (x[:, start : first + L].transpose(0, 1).float().flatten(1, 2) for x in (q, k, v, g, beta[..., None]))
    out = delta_rule(*time_first, a_log.float().repeat(B), dt_bias.float().view(H, K).repeat(B, 1))
    out = out.to(q.dtype)[first - start :].unflatten(1, (B, H)).transpose(0, 1).contiguous()
    if tp_group is not None:
        dist.all_reduce(out, group=tp_group)
    return out


def built_in_gates(*args: Any) -> torch.Tensor:
    """Does not read a_log and dt_bias."""
    *sequences, a_log, dt_bias, cp_group, tp_group = args
    scale, bias = (torch.linspace(-0.1, 0.1, x.numel(), device=x.device).to(x.dtype) for x in (a_log, dt_bias))
    return reference(*sequences, scale, bias, cp_group, tp_group)


COUNTERFEITS = (
    Counterfeit(0, "2.5 % too large", not_quite_scaled, why="outputs below 0.6 stay within the absolute tolerance"),
    Counterfeit(1, "a memory of four tokens", short_memory, why="the state decays by e^-2.5 at each token"),
    Counterfeit(2, "built-in gates", built_in_gates, why="a_log and dt_bias never change"),
)
NOT_SHOWN: dict[int, str] = {}
