"""One episode: its submissions, their rewards, the best of them, and whether another one is judged."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.equal_sources import code_of
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.envs.text.turn import DEFAULT_STYLE, Style, turn_text
from pkb_gym.rewards import EpisodeScore, Reward, TurnScore
from pkb_gym.rewards.reward import was_only_compiled


@dataclass(frozen=True)
class Turn(TurnScore):
    """One submission and its score.

    Attributes:
        number: Number of the submission, from 1.
        source: Text of the submission.
        feedback: Record of its evaluation; None where the evaluator raised an error or was late.
    """

    number: int
    source: str
    feedback: Feedback | None

    @property
    def is_fault(self) -> bool:
        """Whether the evaluator failed. A source that was only compiled is not valid either, but no fault."""
        return not self.is_valid and (self.feedback is None or not was_only_compiled(self.feedback))

    @property
    def speedup(self) -> float:
        """The speedup of the submission over the baseline; 0 where it was not timed."""
        return 0.0 if self.feedback is None else self.feedback.speedup or 0.0


class Episode:
    """The submissions of one episode, for the environment, `EpisodeLoop` and the corpus.

    Args:
        reward: Reward of each submission; `EpisodeScore` makes the rewards of turns of it.
        max_turns: Number of submissions that are judged, at least 1; None for no limit.
        empty_value: Value of an episode without any submission.

    Attributes:
        empty_value: Value of an episode without any submission.
        turns: Submissions, in order.
        best: Best valid submission, the first of equal ones; None before the first.
        best_value: Value of the best submission; None before the first.

    Raises:
        ValueError: `max_turns` is less than 1.

    Example:
        >>> from pkb_gym.rewards import find_reward
        >>> from pkb_gym.rewards.examples import failed, timed
        >>> episode = Episode(find_reward("default"), max_turns=3)
        >>> for feedback in (failed("compile_error"), timed(baseline_us=100, speedup_low=2.0)):
        ...     turn = episode.record("the source", feedback)
        >>> print(episode.message("brief"))
        passed: 50 us, baseline 100 us, speedup 2.00 (2.00 to 2.00)
        value 1.27
        >>> round(turn.reward, 2), round(episode.episode_value, 2), episode.best.number, episode.turns_left
        (1.26, 1.27, 2, 1)
    """

    def __init__(self, reward: Reward, max_turns: int | None = None, empty_value: float = 0.0) -> None:
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, got {max_turns}")
        self._score = EpisodeScore(reward)
        self._max_turns = max_turns
        self.empty_value = empty_value
        self.turns: list[Turn] = []
        self.best: Turn | None = None
        self.best_value: float | None = None

    @property
    def feedback(self) -> Feedback | None:
        """The feedback on the last submission; None before the first, and where its evaluation found nothing."""
        return self.turns[-1].feedback if self.turns else None

    @property
    def turns_left(self) -> int | None:
        """Submissions that are still within `max_turns`; None where there is no limit."""
        return None if self._max_turns is None else self._max_turns - len(self.turns)

    @property
    def refusal(self) -> str | None:
        """The reason why no further submission is judged; None while one is."""
        if any(turn.is_fault for turn in self.turns):
            return "The evaluator failed earlier in this episode; nothing more is judged."
        if self.turns_left == 0:
            return f"All {self._max_turns} submissions of this episode are spent; nothing more is judged."
        return None

    @property
    def episode_value(self) -> float | None:
        """The value of the best submission, less the penalties of a reward of the best so far (`EpisodeScore`).

        None where any submission was not judged, as nothing can be learnt from that.
        """
        if not all(turn.is_valid for turn in self.turns):
            return None
        return self.empty_value if self.best_value is None else self.held_value

    @property
    def held_value(self) -> float:
        """The value of the submissions so far, whatever was not judged; 0 before the first."""
        lost = self._score.penalties
        return max(0.0, self.best_value or 0.0) + lost if lost else self.best_value or 0.0

    def earlier_feedback(self, source: str) -> Feedback | None:
        """The feedback on the first submission of this source, to be recorded again; None if there is none.

        Timed anew, an equal source would be paid for the noise of the better one. Comments and blanks make no other.
        """
        judged = [turn for turn in self.turns if turn.is_valid]
        code = code_of(source) if judged else None
        return next((turn.feedback for turn in judged if turn.source == source or code_of(turn.source) == code), None)

    def record(self, source: str, feedback: Feedback | None) -> Turn:
        """Adds a submission.

        Args:
            source: Text of the submission.
            feedback: Record of its evaluation; None where the evaluator raised an error or was late.
        """
        score = TurnScore(reward=0.0, value=None, parts={}) if feedback is None else self._score.add(feedback)
        turn = Turn(score.reward, score.value, score.parts, len(self.turns) + 1, source, feedback)
        self.turns.append(turn)
        if turn.value is not None and (self.best_value is None or turn.value > self.best_value):
            self.best, self.best_value = turn, turn.value
        return turn

    def message(self, style: Style = DEFAULT_STYLE) -> str:
        """The message to the model that follows the last submission.

        Raises:
            IndexError: The episode has no submission.
        """
        turn = self.turns[-1]
        if turn.feedback is None:
            return "The evaluator failed; nothing more is judged in this episode."
        if style == "brief":
            return brief_feedback(turn.feedback, turn.value)
        best = (0, 0.0, 0.0) if self.best is None else (self.best.number, self.best.value or 0.0, self.best.speedup)
        return turn_text(turn.number, feedback_text(turn.feedback), *best)
