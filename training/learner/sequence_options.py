"""Options of TRL that weigh whole sequences, which advantages of turns cannot be used with.

At sequence level one ratio w, of the mean log ratio of all n tokens, multiplies the advantage of every token:

    L = -1/n * sum_t w * A_t = -w * mean(A),    dL/dlogp_t = -w * mean(A) / n    for every token t

so that the first turn of an episode and the second learn the same, whatever each was credited with: of advantages +1
and -1 for messages of equal length nothing is left. Source: Zheng et al., Group Sequence Policy Optimization,
arXiv:2507.18071, equations 5 and 7, whose advantage is one number for a sequence.
"""

from __future__ import annotations

from trl import GRPOConfig

from pkb_gym.engine.errors import ConfigError

SEQUENCE_LOSSES = {"luspo": "arXiv:2602.05261", "vespo": "arXiv:2602.10693"}
"""Losses of TRL that weigh sequences, and the papers that TRL names for them."""


def refuse_sequence_options(config: GRPOConfig, max_turns: int) -> None:
    """Refuses weights of whole sequences where a sequence has several turns.

    Args:
        config: Configuration of TRL.
        max_turns: Maximum number of submitting messages; with 1 every token of a sequence has the same advantage.

    Raises:
        ConfigError: an option weighs sequences; the message names it.
    """
    if max_turns == 1:
        return
    if config.importance_sampling_level != "token":
        _refuse(f"importance_sampling_level={config.importance_sampling_level}", "importance_sampling_level=token")
    if config.loss_type in SEQUENCE_LOSSES:
        _refuse(
            f"loss_type={config.loss_type}", "loss_type=dapo, which is the default, or grpo, dr_grpo, bnpo or cispo"
        )
    if config.off_policy_mask_threshold is not None:
        _refuse(f"off_policy_mask_threshold={config.off_policy_mask_threshold}", "no off_policy_mask_threshold")


def _refuse(option: str, remedy: str) -> None:
    raise ConfigError(
        f"{option} weighs whole sequences, and each turn of a rollout has an advantage of its own here: take {remedy}, "
        "or rollouts of a single turn (single_turn, or max_turns=1)"
    )
