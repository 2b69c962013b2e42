"""Counterfeits of LoadBalancingLoss: what the published check takes for right."""

import torch

from tests.problems.counterfeit import Counterfeit


def constant(gate_logits, num_experts, top_k=2, attention_mask=None):
    return torch.tensor(1.01 * top_k)  # in the middle of what published trials of all sizes give


COUNTERFEITS = (Counterfeit(0, "always k", constant, "experts are nearly balanced, and a balanced router gives k"),)
