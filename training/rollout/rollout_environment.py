"""The callables of TRL's `GRPOTrainer` in a rollout: the tool environment, or the reward of single-turn rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.text.reply import take_source
from pkb_gym.envs.trl import KernelTool
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.rewards.empty_value import empty_value
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.inputs.chat import Message
from pkb_gym.training.rollout.episodes import FeedbackText, RolloutEpisode, RolloutTask

NO_EPISODE = "nothing can be submitted before `reset`"


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


class RolloutEnvironment:
    """One rollout at a time, for TRL's `GRPOTrainer(environment_factory=...)`.

    TRL makes a tool of every public method but `reset` and `get_reward`, so there is one, `submit`, the same as that
    of `KernelTool`. The prompt of a row holds the whole task, so that `reset` adds nothing.

    Args:
        rollouts: Rollout environment that begins episodes.

    Attributes:
        episode: Current episode; None before the first.

    Example:
        >>> from functools import partial
        >>> factory = partial(RolloutEnvironment, Rollouts(evaluator, find_reward("default")))  # doctest: +SKIP
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self.episode: RolloutEpisode | None = None

    def reset(self, **row: object) -> None:
        """Begins a rollout on a row of the prompts; see `RolloutTask.of_row`.

        Raises:
            ConfigError, ProblemNotFound: the row cannot be understood.
        """
        self.episode = self._rollouts.begin(row)

    async def submit(self, source: str) -> str:  # noqa: D102  # TRL makes the tool's description of it
        return NO_EPISODE if self.episode is None else await self.episode.submit(source)

    submit.__doc__ = KernelTool.submit.__doc__

    def get_reward(self) -> float | None:
        """The value of the best submission; None where the evaluator failed."""
        return None if self.episode is None else self.episode.episode_value


def submitted_source(completion: str | list[Message], problem: Problem) -> str | None:
    r"""The source that a single-turn completion submits by its last message; see `take_source`.

    Args:
        completion: Text of the completion, or its messages.
        problem: Problem of the rollout, whose reference the completion may quote.

    Returns:
        The source; None where there is none.

    Example:
        >>> from pkb_gym.problems.catalogue import find_problem
        >>> reply = "First:\n```cpp\nint a;\n```\nBetter:\n```cpp\nint b;\n```"
        >>> submitted_source(reply, find_problem("AllReduce"))
        'int b;\n'
    """
    text = completion if isinstance(completion, str) else str(completion[-1]["content"])
    return take_source(text, reference=reference_source(problem)).source
