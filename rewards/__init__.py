"""Feedback -> number: the value of a submission and the reward of a turn.

Modules here import `pkb_gym.engine` alone: a reward sees the record of an evaluation and nothing of how it was made.
"""

from pkb_gym.rewards.action_cost import ActionCost, ActionFacts, Charged, FormatCost, LengthCost
from pkb_gym.rewards.advantages import group_relative, leave_one_out
from pkb_gym.rewards.algebra import Constant, Product, Scale, Sum
from pkb_gym.rewards.baseline import baseline_us, speedup_over, with_baseline
from pkb_gym.rewards.compiled_only import PaidForCompiling
from pkb_gym.rewards.component import Component, Recorded
from pkb_gym.rewards.correctness import PartialCorrectness
from pkb_gym.rewards.curriculum import Fade
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.difficulty import Difficulty, difficulties, read_feedbacks
from pkb_gym.rewards.integrity import Honest, IntegrityFloor
from pkb_gym.rewards.ladder import Ladder
from pkb_gym.rewards.mechanism import OwnCommunication, UsesMechanism
from pkb_gym.rewards.milestones import Milestones
from pkb_gym.rewards.performance import LogPerformance, log_performance
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.profiling import BottleneckCoverage, OwnKernelShare
from pkb_gym.rewards.rank_reports import rests_on_rank_reports
from pkb_gym.rewards.recipes import Recipe, find_recipe
from pkb_gym.rewards.records import from_json, from_yaml, to_json, to_yaml
from pkb_gym.rewards.returns import (
    best_of_episode,
    discounted_max,
    discounted_sum,
    first_turn_anchored,
    improvement_only,
    last_of_episode,
)
from pkb_gym.rewards.reward import ItemisedReward, Reward
from pkb_gym.rewards.roofline import RooflinePosition, Utilisation
from pkb_gym.rewards.selection import Clip, Maximum, Minimum, Named, Where
from pkb_gym.rewards.shaping import BestSoFar, EpisodeScore, TurnScore, best_so_far, shaped_rewards
from pkb_gym.rewards.simple import Correctness, FastP
from pkb_gym.rewards.speedup import LogSpeedup, Speedup

__all__ = [
    "ActionCost",
    "ActionFacts",
    "BestSoFar",
    "BottleneckCoverage",
    "Charged",
    "Clip",
    "Component",
    "Constant",
    "Correctness",
    "Difficulty",
    "EpisodeScore",
    "Fade",
    "FastP",
    "FormatCost",
    "Honest",
    "IntegrityFloor",
    "ItemisedReward",
    "Ladder",
    "LadderThenPerformance",
    "LengthCost",
    "LogPerformance",
    "LogSpeedup",
    "Maximum",
    "Milestones",
    "Minimum",
    "Named",
    "OwnCommunication",
    "OwnKernelShare",
    "PaidForCompiling",
    "PartialCorrectness",
    "Product",
    "Recipe",
    "Recorded",
    "Reward",
    "RooflinePosition",
    "Scale",
    "Speedup",
    "Sum",
    "TurnScore",
    "UsesMechanism",
    "Utilisation",
    "Where",
    "baseline_us",
    "best_of_episode",
    "best_so_far",
    "difficulties",
    "discounted_max",
    "discounted_sum",
    "find_recipe",
    "find_reward",
    "first_turn_anchored",
    "from_json",
    "from_yaml",
    "group_relative",
    "improvement_only",
    "last_of_episode",
    "leave_one_out",
    "log_performance",
    "read_feedbacks",
    "rests_on_rank_reports",
    "shaped_rewards",
    "speedup_over",
    "to_json",
    "to_yaml",
    "with_baseline",
]
