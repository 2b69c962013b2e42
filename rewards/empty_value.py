"""The value of an episode, or a reply, without any submission."""

from __future__ import annotations

from pkb_gym.rewards.examples import failed
from pkb_gym.rewards.reward import Reward
from pkb_gym.rewards.user_rewards import value_of


def empty_value(reward: Reward) -> float:
    """Value of a text that is no source at all; 0 where the reward gives none.

    Raises:
        ConfigError: The reward failed, or returned neither a finite number nor None.

    Example:
        >>> from pkb_gym.rewards import find_reward
        >>> empty_value(find_reward("default"))
        0.0
    """
    return value_of(reward, failed("rejected")) or 0.0
