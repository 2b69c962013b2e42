"""The reward function of verl for trajectories with `SubmitTool`; those of `KernelAgentLoop` have their scores.

    reward.custom_reward_function.path=PATH OF THIS FILE
    algorithm.adv_estimator=pkb_grpo

The estimator is known once this file was loaded.
"""

from __future__ import annotations

from pkb_gym.adapters.verl.advantage import ESTIMATOR as ESTIMATOR
from pkb_gym.adapters.verl.tool import SCORE


def compute_score(
    data_source: str,  # noqa: ARG001  # verl's signature
    solution_str: str,  # noqa: ARG001
    ground_truth: str,  # noqa: ARG001
    extra_info: dict[str, object] | None = None,
    **_: object,
) -> float:
    """The value of a trajectory's best submission, as `SubmitTool` left it; 0 without any, NaN where not judged."""
    score = (extra_info or {}).get(SCORE, 0.0)
    assert isinstance(score, float)
    return score
