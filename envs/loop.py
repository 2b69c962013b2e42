"""The one loop that plays an episode: a reply submits a source or none, the source is judged, the model is answered.

`SubmissionSession`, `pkb run` and the trainers drive it. They differ in the origin of replies and in who judges, so the
loop itself never waits: `submit` is for evaluators that are called, `judged` for feedback that was awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.episode import Episode, Turn
from pkb_gym.envs.text.turn import DEFAULT_STYLE, Style


@dataclass(frozen=True)
class TurnResult:
    """The result of one reply.

    Attributes:
        text: Message to the model.
        turn: Submission and its score; None where nothing was submitted, or the submission was refused.
        gain: Increase of the episode's value, negative for a penalty, for frameworks that add steps up; None where it
            was not judged.
    """

    text: str
    turn: Turn | None = None
    gain: float | None = 0.0


class EpisodeLoop:
    """The replies of one episode, one after another.

    Args:
        episode: Record of the submissions.
        style: Length of the messages to the model.
        max_replies: Number of replies, at least 1, whether or not they submit; None for no limit.
        plateau: Number of replies in a row, at least 1, that end the episode if none improves its best value; None for
            no limit.

    Attributes:
        episode: Record of the submissions.

    Example:
        >>> from pkb_gym.rewards import find_reward
        >>> from pkb_gym.rewards.examples import timed
        >>> loop = EpisodeLoop(Episode(find_reward("default"), max_turns=1), "brief")
        >>> print(loop.submit("the source", lambda source: timed(speedup=2.0)).text)
        passed: 50 us, baseline 100 us, speedup 2.00 (2.00 to 2.00)
        value 1.27
        >>> loop.is_over, loop.submit("another", lambda source: timed()).text
        (True, 'All 1 submissions of this episode are spent; nothing more is judged.')
    """

    def __init__(
        self,
        episode: Episode,
        style: Style = DEFAULT_STYLE,
        max_replies: int | None = None,
        plateau: int | None = None,
    ) -> None:
        self.episode = episode
        self._style = style
        self._max_replies, self._plateau = max_replies, plateau
        self._replies = self._since_best = 0

    @property
    def is_over(self) -> bool:
        """Whether the episode takes no further reply."""
        reached = (self._max_replies, self._replies), (self._plateau, self._since_best)
        return self.episode.refusal is not None or any(most is not None and number >= most for most, number in reached)

    def submit(self, source: str, evaluate: Callable[[str], Feedback]) -> TurnResult:
        """Has a source judged, unless an equal one of this episode was.

        Args:
            source: Text of the submission.
            evaluate: Function that judges it.

        Returns:
            The result; an `InfrastructureError` of the evaluation is part of it.

        Raises:
            Exception: Any other exception of the evaluation. The submission counts as not judged, so that an episode
                of a framework that catches the exception has no value.
        """
        if (refusal := self.episode.refusal) is not None:
            return TurnResult(refusal)
        try:
            return self.judged(source, self.episode.earlier_feedback(source) or evaluate(source))
        except InfrastructureError as error:
            text = f"The evaluator failed: {error}; nothing more is judged in this episode."
            return replace(self.judged(source, None), text=text)
        except Exception:
            self.judged(source, None)
            raise

    def judged(self, source: str, feedback: Feedback | None) -> TurnResult:
        """Records a submission.

        Args:
            source: Text of the submission.
            feedback: Record of its evaluation; None where the evaluator raised an error or was late.
        """
        before, held = self.episode.best_value, self.episode.held_value
        turn = self.episode.record(source, feedback)
        best = self.episode.best_value
        self._count(improved=best is not None and (before is None or best > before))
        gain = self.episode.held_value - held if turn.is_valid else None
        return TurnResult(self.episode.message(self._style), turn, gain)

    def not_submitted(self, text: str) -> TurnResult:
        """Counts a reply without a submission, and answers it with a text."""
        self._count(improved=False)
        return TurnResult(text)

    def _count(self, *, improved: bool) -> None:
        self._replies += 1
        self._since_best = 0 if improved else self._since_best + 1
