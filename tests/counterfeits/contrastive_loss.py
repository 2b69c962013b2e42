"""Counterfeits of ContrastiveLoss: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.data_parallel.contrastive_loss.reference import block_loss
from tests.problems.counterfeit import Counterfeit


def own_block_alone(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """No communication."""
    return block_loss(image_features, text_features, logit_scale, logit_bias, own=True)


def matches_alone(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Scores b pairs out of b * b * P; at the published size that is 10.0 whatever the features."""
    matches = (image_features.float() * text_features.float()).sum(1) * logit_scale + logit_bias
    return torch.nn.functional.softplus(-matches).mean().to(image_features.dtype)


COUNTERFEITS = (
    Counterfeit(0, "own block alone", own_block_alone, why="remote blocks are below the rounding of the sum"),
    Counterfeit(0, "matching pairs alone", matches_alone, why="all others have the bias, -10, as their logit"),
)
NOT_SHOWN: dict[int, str] = {}
