"""One episode as a conversation: the task, then a reply to each submission. All foreign frameworks come in here."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gymnasium.error import InvalidAction

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.env import checked_action
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.loop import EpisodeLoop, TurnResult
from pkb_gym.envs.suite import SuiteEnv
from pkb_gym.envs.text.turn import left_text
from pkb_gym.envs.wrappers import chat_message

logger = logging.getLogger(__name__)

SPENT = "All replies of this episode are spent; nothing more is judged."
CLOSED = "This episode has been closed; nothing more is judged."


class _LimitedSuite(SuiteEnv):
    """A suite whose episodes judge a limited number of submissions."""

    def __init__(self, split: str | list[str], max_turns: int, **kwargs: Any) -> None:
        name = self.name_in_errors()
        if type(max_turns) is not int or max_turns < 1:
            raise ConfigError(f"{name}: max_turns must be a whole number, at least 1, got {max_turns!r}")
        if "problem" in kwargs:
            problem = kwargs["problem"]
            raise ConfigError(f"{name}: problem={problem!r} is for reset; split=[...] has the problems to draw from")
        self.max_turns = max_turns
        super().__init__(split, **kwargs)

    @classmethod
    def name_in_errors(cls) -> str:
        """The class as its users know it."""
        return SubmissionSession.__name__

    def _new_episode(self) -> Episode:
        return Episode(self._reward, self.max_turns)


class SubmissionSession:
    """The submissions of one episode at a time, and the messages between them.

    Args:
        split: Problems to draw from where `reset` names none, as `split_names` takes them.
        max_turns: Number of submissions, those that are no text included, at least 1; later ones are answered and not
            judged.
        **kwargs: Arguments of `PKBEnv`, without `problem`.

    Raises:
        ConfigError: An argument is unknown, or does not fit every problem of the split.

    Example:
        >>> session = SubmissionSession(["AllReduce"], world_size=2)
        >>> session.reset("AllReduce", seed=7).splitlines()[0], session.episode.episode_value
        ('# AllReduce', 0.0)
    """

    def __init__(self, split: str | list[str] = "train", max_turns: int = 8, **kwargs: Any) -> None:
        self._env = _LimitedSuite(split, max_turns, **kwargs)
        self._loop = self._new_loop()
        self._closed = False

    @property
    def episode(self) -> Episode:
        """The submissions since the last reset."""
        return self._env.episode

    @property
    def problem(self) -> str:
        """Name of the problem of this episode."""
        return self._env.problem.name

    @property
    def is_over(self) -> bool:
        """Whether no further submission is judged."""
        return self._closed or self._loop.is_over

    def reset(self, problem: str | None = None, seed: int | None = None) -> str:
        """Begins an episode.

        Args:
            problem: Name of the problem; by default one drawn from the split.
            seed: Seed of the inputs, so that episodes of one group can share them.

        Returns:
            The task text.

        Raises:
            ProblemNotFound: There is no such problem.
        """
        options = {} if problem is None else {"problem": problem}
        observation, _info = self._env.reset(seed=seed, options=options)
        self._loop = self._new_loop()
        self._closed = False
        return chat_message(observation)

    def restore(self, attempts: Iterable[tuple[str, Feedback | None]]) -> None:
        """Records submissions that were judged before, for servers that keep an episode as data between calls.

        Args:
            attempts: Source and feedback of each, in order; no feedback where the evaluator raised an error.
        """
        for source, feedback in attempts:
            self.episode.record(source, feedback)

    def submit(self, source: str) -> TurnResult:
        """Has a source judged.

        Args:
            source: Text of the submission.

        Returns:
            The message that follows it. A failure of the evaluator is part of it, never an exception.

        Raises:
            InvalidAction: The source is no text; it costs a submission, or an agent could go on for ever.
            ConfigError: An evaluation service has no such device, or not as many ranks. The submission counts as not
                judged, as after any other exception, so that an episode of a framework that catches it has no value.
        """
        if self._closed:
            return TurnResult(CLOSED)
        if not self.is_over:
            try:
                checked_action(source)
            except InvalidAction:
                self._loop.not_submitted("")
                raise
        elif self.episode.refusal is None:
            return TurnResult(SPENT)
        try:
            result = self._loop.submit(source, self._env.evaluate)
        except Exception:
            logger.warning("a submission of %s was not judged", self.problem, exc_info=True)
            raise
        if result.turn is None or result.turn.feedback is None:
            return result
        return replace(result, text=f"{result.text}\n{left_text(self.episode.turns_left or 0)}")

    def _new_loop(self) -> EpisodeLoop:
        return EpisodeLoop(self._env.episode, self._env.style, max_replies=self._env.max_turns)

    def close(self) -> None:
        """Ends the episode; calling it again changes nothing. The evaluator, shared by a process, goes on."""
        self._closed = True
