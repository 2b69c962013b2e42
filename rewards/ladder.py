"""A small ladder over the stages, which ranks attempts that do not yet work."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_breach, is_infrastructure_failure, is_right

ENDED = (Failure.DEADLOCK, Failure.WRONG_SHAPE_OR_DTYPE)
"""Failures of a kernel that ran and has no outputs to be compared: no more than compiled."""

WRONG = (Failure.OUTPUT_MISMATCH, Failure.INPUT_MODIFIED)


@dataclass(frozen=True)
class Ladder(Component):
    """One rung per stage, and between "ran" and "almost" by the cube of the share of outputs that were earned.

        r = breach                               a race, or caught cheating
        r = 0                                    rejected, or it ran and left all outputs as they were
        r = accepted                             the text was accepted, and did not compile
        r = compiled                             it compiled, and failed while loading or running, or ran into a
                                                 deadlock, or gave outputs of another shape
        r = ran                                  it ran on every rank, and changed inputs that are to stay as they are,
                                                 or was wrong while timed
        r = ran + (almost - ran) * share ** 3    it ran on every rank, and outputs differ
        r = almost                               every checked output was right, and it failed later
        r = 1                                    right

    share is `CheckReport.earned_share`. It counts whole outputs rather than elements, as an output that is mostly zeros
    has mostly right elements after doing nothing; those that are right on every rank, as a rank's part of the work is
    right on that rank; and none that a kernel gets right without any work or without its peers. The cube makes little
    of the few calls that such a kernel has right by chance, as where routing happens to send nothing to others: a third
    of the calls of a few problems.

    Almost right stays below right: almost < 1. A breach costs more than not submitting: breach < 0.

    Range: [breach, 1]. Source: own; the order is that of `Stage`.

    Example:
        >>> from .examples import failed, timed
        >>> Ladder()(failed("compile_error")), Ladder()(failed("output_mismatch", earned_share=0.5)), Ladder()(timed())
        (0.01, 0.08125, 1.0)
        >>> Ladder()(failed("race")), Ladder()(failed("output_mismatch", nothing_written=True))
        (-0.35, 0.0)
    """

    accepted: float = 0.01
    compiled: float = 0.03
    ran: float = 0.05
    almost: float = 0.3
    breach: float = -0.35

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.compiled <= self.ran <= self.almost < 1:
            raise ValueError(f"rungs must not fall and must end below 1, got {self}")
        if not -1 <= self.breach <= 0:
            raise ValueError(f"breach must be in [-1, 0], got {self.breach}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        if is_breach(feedback):
            return self.breach
        if feedback.stage is None:
            return 0.0
        if is_right(feedback):
            return 1.0
        if feedback.stage is Stage.STATIC:
            return self.accepted
        if feedback.stage is Stage.COMPILE or feedback.failure in ENDED:
            return self.compiled
        if feedback.failure is Failure.INPUT_MODIFIED:
            return self.ran
        if feedback.stage is Stage.RUN:
            return self._of_outputs(feedback)
        return self.ran if feedback.failure in WRONG else self.almost

    def _of_outputs(self, feedback: Feedback) -> float:
        if feedback.check is not None and feedback.check.nothing_written:
            return 0.0
        return self.ran + (self.almost - self.ran) * earned_output_share(feedback) ** 3

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return self.breach, 1.0


def earned_output_share(feedback: Feedback) -> float:
    """The share of outputs that a wrong kernel has earned, in [0, 1]; 0 where it is unknown.

    A kernel that is right until ranks are slow inside of their calls has earned all.
    """
    check = feedback.check
    if check is None:
        return 0.0
    if check.passed:
        return 1.0
    return min(1.0, max(0.0, check.earned_share or 0.0))
