"""One episode as a conversation: the task, then a reply to each submission. All foreign frameworks come in here."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.episode import Episode, Turn
from pkb_gym.envs.suite import SuiteEnv
from pkb_gym.envs.wrappers import chat_message

logger = logging.getLogger(__name__)

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
        self._max_turns = max_turns
        super().__init__(split, **kwargs)

    @classmethod
    def name_in_errors(cls) -> str:
        """See `PKBEnv`."""
        return SubmissionSession.__name__

    def _new_episode(self) -> Episode:
        return Episode(self._reward, self._max_turns)


@dataclass(frozen=True)
class SubmissionReply:
    """The answer to one submission.

    Attributes:
        text: the message to the model.
        turn: the submission and its score; None where it was refused and counts for nothing.
        gain: increase of the episode's best value, for frameworks that add steps up; None where it was not judged.
    """

    text: str
    turn: Turn | None
    gain: float | None


class SubmissionSession:
    """The submissions of one episode at a time, and the messages between them.

    Args:
        split: problems to draw from where `reset` names none, see `split_names`.
        max_turns: submissions that are judged; later ones are answered and count for nothing.
        **kwargs: arguments of `PKBEnv`, without `problem`.

    Raises:
        ConfigError: an argument is not understood, or does not fit every problem of the split.

    Example:
        >>> session = SubmissionSession(["AllReduce"], world_size=2)
        >>> session.reset("AllReduce", seed=7).splitlines()[0], session.episode.episode_value
        ('# AllReduce', 0.0)
    """

    def __init__(self, split: str | list[str] = "train", max_turns: int = 8, **kwargs: Any) -> None:
        self._env = _LimitedSuite(split, max_turns, **kwargs)
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
        return self._closed or self.episode.refusal is not None

    def reset(self, problem: str | None = None, seed: int | None = None) -> str:
        """Begins an episode.

        Args:
            problem: its name; drawn from the split where it is missing.
            seed: fixes the inputs, so that episodes of one group can share them.

        Returns:
            The task text.

        Raises:
            ProblemNotFound: there is no such problem.
        """
        options = {} if problem is None else {"problem": problem}
        observation, _info = self._env.reset(seed=seed, options=options)
        self._closed = False
        return chat_message(observation)

    def restore(self, attempts: Iterable[tuple[str, Feedback | None]]) -> None:
        """Records submissions that were judged before, for servers that keep an episode as data between calls.

        Args:
            attempts: source and feedback of each, in order; None where the evaluator raised an error.
        """
        for source, feedback in attempts:
            self.episode.record(source, feedback)

    def submit(self, source: str) -> SubmissionReply:
        """Has a source judged.

        Args:
            source: its text.

        Returns:
            The message that follows it. A failure of the evaluator is part of it, never an exception.

        Raises:
            InvalidAction: the source is no text; it counts for nothing.
            ConfigError: an evaluation service has no such device, or not as many ranks. The submission counts as not
                judged, as after any other exception, so that an episode of a framework that catches it has no value.
        """
        if self._closed:
            return SubmissionReply(CLOSED, None, 0.0)
        episode = self.episode
        if (refusal := episode.refusal) is not None:
            return SubmissionReply(refusal, None, 0.0)
        best_before = episode.best_value or 0.0
        try:
            observation, *_ = self._env.step(source)
        except InfrastructureError as error:
            turn = episode.record(source, None)
            text = f"The evaluator failed: {error}; nothing more is judged in this episode."
            return SubmissionReply(text, turn, None)
        except gym.error.InvalidAction:
            raise
        except Exception:
            logger.warning("a submission of %s was not judged", self.problem, exc_info=True)
            episode.record(source, None)
            raise
        left, turn = episode.turns_left, episode.turns[-1]
        text = f"{chat_message(observation)}\n{left} submission{'' if left == 1 else 's'} left."
        return SubmissionReply(text, turn, (episode.best_value or 0.0) - best_before if turn.is_valid else None)

    def close(self) -> None:
        """Ends the episode; calling it again changes nothing. The evaluator, shared by a process, goes on."""
        self._closed = True
