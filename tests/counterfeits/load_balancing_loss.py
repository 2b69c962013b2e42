"""Counterfeits of LoadBalancingLoss: what the published check takes for right."""

import torch

from tests.problems.counterfeit import Counterfeit


def constant(gate_logits, num_experts, top_k=2, attention_mask=None):
    return torch.tensor(float(top_k))


COUNTERFEITS = (Counterfeit(0, "always k", constant, "experts are nearly balanced, and a balanced router gives k"),)
