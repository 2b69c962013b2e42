"""Counterfeits of GatedDeltaNetCP: what the published check takes for right."""

from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.gated_delta_net_cp.reference import gated_delta_rule
from pkb_gym.problems.context_parallel.gated_delta_net_cp.reference import solution as reference
from tests.problems.counterfeit import Counterfeit

HISTORY = 8


def gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Every rank's tensor."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def not_quite_scaled(*args: Any) -> torch.Tensor:
    """2 % too large."""
    out = reference(*args)
    return (1.02 * out.float()).to(out.dtype)


def short_memory(*args: Any) -> torch.Tensor:
    """Each rank scans all heads of its own positions and of a few before."""
    *sequences, a_log, dt_bias, group = args
    L, r = sequences[0].shape[1], dist.get_rank(group)
    scale, bias = (torch.cat(gather(x, group)) for x in (a_log, dt_bias))
    start = max(0, r * L - HISTORY)
    seen = [torch.cat(gather(x, group), dim=1)[:, start : (r + 1) * L] for x in sequences]
    B, _, Hv, D = seen[2].shape
    q, k, v, gate, beta = (x.transpose(0, 1).float().contiguous() for x in seen)
    out = gated_delta_rule(q, k, v, gate[..., None], beta[..., None], scale, bias)[r * L - start :]
    return out.to(seen[0].dtype).view(-1, B, Hv, D).transpose(0, 1).contiguous()


def built_in_gates(*args: Any) -> torch.Tensor:
    """Does not read a_log and dt_bias."""
    *sequences, a_log, _, group = args
    Hl = a_log.numel()
    mine = slice(dist.get_rank(group) * Hl, (dist.get_rank(group) + 1) * Hl)
    scale, bias = (
        torch.linspace(low, high, Hl * dist.get_world_size(group)).to(a_log)[mine]
        for low, high in ((0.0, 0.2), (-0.1, 0.1))
    )
    return reference(*sequences, scale, bias, group)


def heads_in_turn(*args: Any) -> torch.Tensor:
    """Pairs value head h with query head h modulo Hq."""
    q, k, v, *rest = args
    share = v.shape[2] // q.shape[2]
    W = dist.get_world_size(rest[-1])
    q, k = (x.unflatten(2, (W, -1)).repeat(1, 1, 1, share, 1).flatten(2, 3) for x in (q, k))
    return reference(q, k, v, *rest)


COUNTERFEITS = (
    Counterfeit(0, "2 % too large", not_quite_scaled, why="outputs below 0.7 stay within the absolute tolerance"),
    Counterfeit(1, "a memory of eight tokens", short_memory, why="the state decays to 0.4 at each token"),
    Counterfeit(1, "built-in gates", built_in_gates, why="a_log and dt_bias never change"),
    Counterfeit(2, "query heads in turn", heads_in_turn, why="with Hq = Hv every pairing is h to h"),
)
NOT_SHOWN: dict[int, str] = {}
