"""A small ladder over the stages, which ranks attempts that do not yet work."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_caught, is_infrastructure_failure, is_right


@dataclass(frozen=True)
class Ladder(Component):
    """One rung per stage, and between "ran" and "almost" in proportion to the outputs that match.

        r = 0                                   rejected, or caught cheating
        r = accepted                            the text was accepted, and did not compile
        r = compiled                            it compiled, and failed while loading or running
        r = ran                                 it ran on every rank, and changed inputs that are to stay as they are
        r = ran + (almost - ran) * right_share  it ran on every rank, and outputs differ
        r = almost                              every checked output was right, and it failed later (timing, profiling)
        r = 1                                   right

    right_share counts whole outputs (of each rank and call) rather than elements: an output that is mostly zeros has
    mostly right elements after doing nothing. Almost right stays below right: almost < 1.

    Range: [0, 1]. Source: own; the order is that of `Stage`.

    Example:
        >>> from .examples import failed, timed
        >>> Ladder()(failed("compile_error")), Ladder()(failed("output_mismatch", right_share=0.5)), Ladder()(timed())
        (0.05, 0.4, 1.0)
    """

    accepted: float = 0.05
    compiled: float = 0.2
    ran: float = 0.25
    almost: float = 0.55

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.compiled <= self.ran <= self.almost < 1:
            raise ValueError(f"rungs must not fall and must end below 1, got {self}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        if feedback.stage is None or is_caught(feedback):
            return 0.0
        if is_right(feedback):
            return 1.0
        if feedback.stage is Stage.STATIC:
            return self.accepted
        if feedback.stage is Stage.COMPILE:
            return self.compiled
        if feedback.failure is Failure.INPUT_MODIFIED:
            return self.ran
        if feedback.stage is Stage.RUN:
            return self.ran + (self.almost - self.ran) * right_output_share(feedback)
        return self.almost

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0


def right_output_share(feedback: Feedback) -> float:
    """Right outputs among all that were compared, in [0, 1]; 0 where nothing was compared."""
    check = feedback.check
    if check is None or check.outputs_compared <= 0:
        return 0.0
    return min(1.0, max(0.0, check.outputs_right / check.outputs_compared))
