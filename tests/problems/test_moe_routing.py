"""Routing of the mixture-of-experts layers: inputs leave no token to the order or the rounding of the router's sums."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.problems.expert_parallel.moe_layer import is_doubtful

TOKENS, WIDTH, EXPERTS, CHOSEN = 40_000, 256, 4, 2


def router(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, weights and bias as the inputs have them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, WIDTH, generator=generator)
    weight = torch.randn(EXPERTS, WIDTH, generator=generator) * 2 / WIDTH**0.5
    bias = torch.randn(EXPERTS, generator=generator)
    return tokens.bfloat16(), weight.bfloat16(), bias.bfloat16()


def chosen(probabilities: torch.Tensor) -> torch.Tensor:
    return probabilities.topk(CHOSEN, dim=-1).indices.sort(-1).values


@pytest.mark.parametrize("parts", [1, 8, 16])
def test_no_rounding_of_partial_sums_changes_a_route(parts: int) -> None:
    tokens, weight, bias = router(parts)
    tokens = tokens[~is_doubtful(tokens, weight, bias, CHOSEN)]
    exact = tokens.double() @ weight.double().T + bias.double()
    logits = torch.zeros(len(tokens), EXPERTS)
    for of_tokens, of_weight in zip(tokens.float().chunk(parts, 1), weight.float().chunk(parts, 1), strict=True):
        logits = (logits + of_tokens @ of_weight.T).bfloat16().float()
    rounded = (logits + bias.float()).bfloat16().softmax(-1)
    assert torch.equal(chosen(rounded), chosen(exact))
    assert len(tokens) > 0.9 * TOKENS, "the others are drawn again"
