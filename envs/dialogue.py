"""What a model is told after each of its submissions: the same words in a corpus and in an environment."""

from __future__ import annotations

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.envs.text.turn import Style, turn_text


class Dialogue:
    """The evaluator's side of one conversation: counts the turns and keeps the best.

    Example:
        >>> from pkb_gym.rewards.examples import timed
        >>> print(Dialogue("brief").answer(timed(baseline_us=100, speedup_low=2.0), 1.5))
        passed: 50 us, baseline 100 us, speedup 2.00 (2.00 to 2.00)
        worth 1.50
    """

    def __init__(self, style: Style) -> None:
        self.style = style
        self.turn = 0
        self._best: tuple[int, float, float | None] | None = None

    def answer(self, feedback: Feedback, value: float | None) -> str:
        """The text of the next tool message.

        Args:
            feedback: on the submission that was just made.
            value: what it is worth; None where the fault was the evaluator's, which counts for nothing.
        """
        self.turn += 1
        if value is not None and (self._best is None or value > self._best[1]):
            self._best = (self.turn, value, feedback.speedup)
        if self.style == "brief":
            return brief_feedback(feedback, value)
        turn, best, speedup = self._best or (0, 0.0, None)
        return turn_text(self.turn, feedback_text(feedback), turn, best, speedup or 0.0)
