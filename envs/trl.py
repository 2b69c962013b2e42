"""The tool environment for TRL's `GRPOTrainer(environment_factory=...)`."""

from __future__ import annotations

import warnings
from typing import Any

from pkb_gym.envs.episode import Turn
from pkb_gym.envs.session import SubmissionSession

COUNTED_TWICE = (
    "the reward of a rollout was read twice: TRL adds KernelTool.get_reward to the reward functions that it is given. "
    "Take SubmissionTool beside a function that reads the environments"
)


class SubmissionTool:
    """One rollout: the model reads the task and submits sources with the tool `submit`.

    TRL makes a tool of every public method but `reset` and `get_reward`, so there is one, `submit`. TRL calls `reset`
    with the columns of the dataset's row, and appends what it returns to the prompt. The reward is that of functions of
    yours, which find this object among their `environments`.

    TRL answers the model with the message of an exception that a tool raises, and goes on. So a submission that meets
    with one, whatever its class, counts as not judged, and its rollout has no value.

    Args:
        split: Problems to draw from where the row names none, as `split_names` takes them.
        max_turns: Number of submissions that are judged, at least 1; later ones are answered and not judged.
        **kwargs: Arguments of `PKBEnv`, without `problem`.

    Example:
        >>> from functools import partial
        >>> factory = partial(SubmissionTool, split=["AllReduce"], world_size=2)
        >>> tool = factory()
        >>> tool.reset(problem="AllReduce", seed=7).splitlines()[0], tool.episode_value
        ('# AllReduce', 0.0)
    """

    def __init__(self, split: str | list[str] = "train", max_turns: int = 8, **kwargs: Any) -> None:
        self._session = SubmissionSession(split, max_turns, **kwargs)
        self._reads = 0

    @property
    def episode_value(self) -> float | None:
        """The value of the best submission, 0 without any; None where one was not judged."""
        return self._session.episode.episode_value

    @property
    def submissions(self) -> tuple[Turn, ...]:
        """The submissions of this rollout, with source, feedback and value."""
        return tuple(self._session.episode.turns)

    def reset(self, *, problem: str | None = None, seed: int | None = None, **_: object) -> str:
        """Begins a rollout.

        Args:
            problem: Name of the problem, a column of the dataset's row; by default one drawn from the split.
            seed: Seed of the inputs, a column of the dataset's row, so that rollouts of one group can share them.
            **_: Other columns of the row.

        Returns:
            The task text.
        """
        self._reads = 0
        return self._session.reset(problem, seed)

    def submit(self, source: str) -> str:
        """Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline.

        Args:
            source: The complete source file of the kernel, in one of the languages that the task accepts.

        Returns:
            The feedback: compiler errors, wrong outputs, times, the roofline, and the profile.
        """
        self._reads = 0
        return self._session.submit(source).text


class KernelTool(SubmissionTool):
    """A `SubmissionTool` that is paid the value of its best submission.

    TRL takes `get_reward` as a reward beside the `reward_funcs` that it is given, and adds them up. A function of yours
    that reads the value from here would count it twice: take `SubmissionTool` beside it.

    Example:
        >>> tool = KernelTool(split=["AllReduce"], world_size=2)
        >>> tool.reset(problem="AllReduce", seed=7).splitlines()[0], tool.get_reward()
        ('# AllReduce', 0.0)
    """

    def get_reward(self) -> float | None:
        """The value of the best submission, 0 without any; None where one was not judged."""
        self._reads += 1
        if self._reads == 2:
            warnings.warn(COUNTED_TWICE, stacklevel=2)
        return self.episode_value
