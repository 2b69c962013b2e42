"""Counterfeits of RingAttentionPP: what the published check takes for right."""

from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.problems.pipeline_parallel.ring_attention_pp.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def uniform_after_stage_0(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    pp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """With a scale of 0 every visible position has the same weight."""
    if pp_group is not None and dist.get_rank(pp_group) > 0:
        softmax_scale = 0.0
    return reference(hidden_states, w_qkv, w_o, num_heads, softmax_scale, causal, cp_group, pp_group)


def recomputes_stage_0(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    pp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The second stage fetches weights, not activations, and starts from its own hidden states."""
    x, layers = hidden_states, [(w_qkv, w_o)]
    if pp_group is not None and dist.get_world_size(pp_group) > 1:
        gathered = []
        for weight in (w_qkv, w_o):
            parts = [torch.empty_like(weight) for _ in range(dist.get_world_size(pp_group))]
            dist.all_gather(parts, weight, group=pp_group)
            gathered.append(parts)
        layers = list(zip(*gathered, strict=True))[: dist.get_rank(pp_group) + 1]
    for stage_qkv, stage_o in layers:
        x = reference(x, stage_qkv, stage_o, num_heads, softmax_scale, causal, cp_group, None)
    return x


def with_built_in_modes(*args: Any) -> torch.Tensor:
    """Mask and scale are those of the published inputs."""
    hidden_states, w_qkv, w_o, num_heads, _, _, cp_group, pp_group = args
    return reference(hidden_states, w_qkv, w_o, num_heads, None, True, cp_group, pp_group)


COUNTERFEITS = (
    Counterfeit(0, "plain mean after stage 0", uniform_after_stage_0, why="its softmax is nearly uniform anyway"),
    Counterfeit(1, "own hidden states at every stage", recomputes_stage_0, why="all stages hold those of stage 0"),
    Counterfeit(1, "built-in mask and scale", with_built_in_modes, why="they never change"),
)
NOT_SHOWN: dict[int, str] = {}
