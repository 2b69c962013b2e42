"""Feedback -> number: the value of a submission and the reward of a turn.

Modules here import `pkb_gym.engine` alone: a reward sees the record of an evaluation and nothing of how it was made.
"""

from pkb_gym.rewards.advantages import group_relative, leave_one_out
from pkb_gym.rewards.baseline import baseline_us, speedup_over, with_baseline
from pkb_gym.rewards.compiled_only import PaidForCompiling
from pkb_gym.rewards.component import Clip, Component, Constant, Recorded, Scale, Sum, Where
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.ladder import Ladder
from pkb_gym.rewards.milestones import Milestones
from pkb_gym.rewards.own_communication import OwnCommunication
from pkb_gym.rewards.performance import Performance, performance, reachable_speedup
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.profiling import OwnKernelShare
from pkb_gym.rewards.recipes import Recipe, find_recipe
from pkb_gym.rewards.records import from_json, to_json
from pkb_gym.rewards.returns import (
    best_of_episode,
    discounted_max,
    discounted_sum,
    first_turn_anchored,
    improvement_ahead,
    improvement_only,
    last_of_episode,
)
from pkb_gym.rewards.reward import ItemisedReward, Reward
from pkb_gym.rewards.roofline import Utilisation
from pkb_gym.rewards.shaping import BestSoFar, EpisodeScore, TurnScore
from pkb_gym.rewards.simple import Correctness, FastP
from pkb_gym.rewards.speedup import LogSpeedup, Speedup

__all__ = [
    "BestSoFar",
    "Clip",
    "Component",
    "Constant",
    "Correctness",
    "EpisodeScore",
    "FastP",
    "ItemisedReward",
    "Ladder",
    "LadderThenPerformance",
    "LogSpeedup",
    "Milestones",
    "OwnCommunication",
    "OwnKernelShare",
    "PaidForCompiling",
    "Performance",
    "Recipe",
    "Recorded",
    "Reward",
    "Scale",
    "Speedup",
    "Sum",
    "TurnScore",
    "Utilisation",
    "Where",
    "baseline_us",
    "best_of_episode",
    "discounted_max",
    "discounted_sum",
    "find_recipe",
    "find_reward",
    "first_turn_anchored",
    "from_json",
    "group_relative",
    "improvement_ahead",
    "improvement_only",
    "last_of_episode",
    "leave_one_out",
    "performance",
    "reachable_speedup",
    "speedup_over",
    "to_json",
    "with_baseline",
]
