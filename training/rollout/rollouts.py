"""The source of episodes, which GRPO and the evaluation of policies play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.empty_value import empty_value
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.rollout.episodes import FeedbackText, RolloutEpisode, RolloutTask


@dataclass(frozen=True)
class Rollouts:
    """Begins episodes.

    Attributes:
        evaluator: Evaluator of the submissions.
        reward: Reward of the submissions.
        max_turns: Maximum number of evaluated submissions in an episode.
        base: Settings of evaluations that rows of prompts leave open: last stage, deadlines, time for timing.
        feedback: Amount of feedback that the policy reads.
        shorten: Function that makes an answer to the policy short enough.
    """

    evaluator: AsyncEvaluator
    reward: Reward
    max_turns: int = 4
    base: EvalConfig = field(default_factory=lambda: EvalConfig(until="time"))
    feedback: FeedbackText = "whole"
    shorten: Callable[[str], str] = str

    @cached_property
    def empty_value(self) -> float:
        """Value of an episode without any submission."""
        return empty_value(self.reward)

    def begin(self, row: Mapping[str, object]) -> RolloutEpisode:
        """An episode on a row of the prompts; see `RolloutTask.of_row`."""
        task = RolloutTask.of_row(row, self.base)
        return RolloutEpisode(
            task, self.evaluator, self.reward, self.max_turns, self.empty_value, self.feedback, self.shorten
        )
