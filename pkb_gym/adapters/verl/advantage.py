"""GRPO's advantages among the trajectories that were judged.

verl has no score for "not judged": every trajectory has a number. Here it is NaN, and this estimator leaves these
trajectories out of the mean of their group; any other one would spread the NaN over the group.
"""

from __future__ import annotations

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

ESTIMATOR = "pkb_grpo"


@register_adv_est(ESTIMATOR)
def judged_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray[tuple[int], np.dtype[np.object_]],
    config: object | None = None,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantages among the trajectories that were judged; 0 for the others.

    Args:
        token_level_rewards: Rewards of shape (batch, response length); a row with NaN was not judged.
        response_mask: Mask of shape (batch, response length); 1 for tokens of the policy.
        index: Group of each trajectory, of shape (batch,).
        config: Configuration `AlgoConfig` of verl; `norm_adv_by_std_in_grpo` is read.

    Returns:
        Advantages and returns, shape (batch, response length).
    """
    judged = ~token_level_rewards.isnan().any(dim=-1)
    advantages = torch.zeros_like(token_level_rewards)
    if judged.any():
        scaled = bool(getattr(config, "norm_adv_by_std_in_grpo", True))
        rewards, mask, groups = token_level_rewards[judged], response_mask[judged], index[judged.cpu().numpy()]
        advantages[judged], _ignored = compute_grpo_outcome_advantage(
            rewards, mask, groups, norm_adv_by_std_in_grpo=scaled
        )
    return advantages, advantages
