"""Feedback -> number: what a submission is worth, and what a turn is paid.

Modules here import `pkb_gym.engine` alone: a reward sees the record of an evaluation and nothing of how it was made.
"""

from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.ladder import Ladder
from pkb_gym.rewards.performance import LogPerformance, log_performance
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.reward import ItemisedReward, Reward
from pkb_gym.rewards.shaping import BestSoFar, EpisodeScore, TurnScore
from pkb_gym.rewards.simple import Correctness, FastP

__all__ = [
    "BestSoFar",
    "Correctness",
    "EpisodeScore",
    "FastP",
    "ItemisedReward",
    "Ladder",
    "LadderThenPerformance",
    "LogPerformance",
    "Reward",
    "TurnScore",
    "find_reward",
    "log_performance",
]
