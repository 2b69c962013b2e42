"""Counterfeits of FusedMoELoRA: what the published check takes for right."""

import torch
import torch.nn.functional as F

from pkb_gym.problems.expert_parallel.fused_moe_lora.reference import solution
from tests.problems.counterfeit import Counterfeit
from tests.problems.moe_counterfeits import CACHED, fixed_capacity


def lora_mlp(rows, gate_proj, up_proj, down_proj, gate_A, gate_B, up_A, up_B, down_A, down_B):
    gate = gate_proj(rows) + F.linear(F.linear(rows, gate_A), gate_B)
    up = up_proj(rows) + F.linear(F.linear(rows, up_A), up_B)
    rows = F.silu(gate) * up
    return down_proj(rows) + F.linear(F.linear(rows, down_A), down_B)


@torch.no_grad()
def no_second_expert_behind_a_gap(hidden_states, gate_weight, gate_bias, *args):
    *weights, num_experts, top_k, group = args
    first, full = (solution(hidden_states, gate_weight, gate_bias, *weights, num_experts, k, group) for k in (1, top_k))
    logits = F.linear(hidden_states, gate_weight, gate_bias).float()
    gap = -logits.topk(2, dim=-1).values.diff(dim=-1)
    deviation = gate_weight.float().square().mean().sqrt() * hidden_states.float().norm(dim=-1, keepdim=True)
    return torch.where(gap > 1.6 * deviation, first, full)


COUNTERFEITS = (
    Counterfeit(
        1, "no second expert behind a gap", no_second_expert_behind_a_gap, "with logits near 32 a gap leaves it nothing"
    ),
    Counterfeit(2, "fixed capacity", fixed_capacity(lora_mlp), "no rank gets 1.45 times its share"),
)
NOT_SHOWN = {
    0: "the published check refuses right results here rather than taking wrong ones",
    3: CACHED,
}
