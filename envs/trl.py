"""The tool environment for TRL's `GRPOTrainer(environment_factory=...)`."""

from __future__ import annotations

from typing import Any

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.suite import SuiteEnv
from pkb_gym.envs.wrappers import chat_message


class _LimitedSuite(SuiteEnv):
    """A suite whose episodes judge a limited number of submissions."""

    def __init__(self, split: str | list[str], max_turns: int, **kwargs: Any) -> None:
        self._max_turns = max_turns
        super().__init__(split, **kwargs)

    def _new_episode(self) -> Episode:
        return Episode(self._reward, self._max_turns)


class KernelTool:
    """One rollout: the model reads the task and submits sources with the tool `submit`.

    TRL makes a tool of every public method but `reset` and `get_reward`, so there is one, `submit`. TRL calls `reset`
    with the columns of the dataset's row, appends what it returns to the prompt, and asks for the reward at the end.

    Args:
        split: problems to draw from where the row names none, see `split_names`.
        max_turns: submissions that are judged; later ones are answered and count for nothing.
        **kwargs: arguments of `PKBEnv`, without `problem`.

    Example:
        >>> from functools import partial
        >>> factory = partial(KernelTool, split=["AllReduce"], world_size=2)
        >>> tool = factory()
        >>> tool.reset(problem="AllReduce", seed=7).splitlines()[0]
        '# AllReduce'
    """

    def __init__(self, split: str | list[str] = "train", max_turns: int = 8, **kwargs: Any) -> None:
        self._env = _LimitedSuite(split, max_turns, **kwargs)

    def reset(self, *, problem: str | None = None, seed: int | None = None, **_: object) -> str:
        """Begins a rollout.

        Args:
            problem: column of the dataset's row; drawn from the split where it is missing.
            seed: column of the dataset's row; fixes the inputs, so that rollouts of one group can share them.
            **_: the row's other columns.

        Returns:
            The task text.
        """
        options = {} if problem is None else {"problem": problem}
        observation, _info = self._env.reset(seed=seed, options=options)
        return chat_message(observation)

    def submit(self, source: str) -> str:
        """Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline.

        Args:
            source: The complete source file of the kernel, in one of the languages that the task accepts.

        Returns:
            What was found: compiler errors, wrong outputs, times, the roofline, and where the time went.
        """
        episode = self._env.episode
        if (refusal := episode.refusal) is not None:
            return refusal
        try:
            observation, *_ = self._env.step(source)
        except InfrastructureError as error:
            episode.record(source, None)
            return f"The evaluator failed: {error}; nothing more is judged in this episode."
        left = episode.turns_left
        return f"{chat_message(observation)}\n{left} submission{'' if left == 1 else 's'} left."

    def get_reward(self) -> float | None:
        """The value of the best submission, 0 without any; None where the evaluator failed."""
        return self._env.episode.episode_value
