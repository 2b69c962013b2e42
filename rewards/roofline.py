"""The speed of a right kernel beside the time of its work at the hardware's peaks."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Estimate, refuse_estimate
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure
from pkb_gym.rewards.speedup import paid_speedup


@dataclass(frozen=True)
class Utilisation(Component):
    """The utilisation of the resource that binds, for a right kernel, else 0.

        r = min(1, roofline_us * speedup / baseline_us)

    which is roofline_us / candidate_us. The baseline enters through the clock alone: a slow one makes no kernel good.

    Range: [0, 1]; 0 where the roofline is not known.
    Source: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.

    Example:
        >>> from .examples import failed, timed
        >>> Utilisation()(timed(baseline_us=100, roofline_us=25, speedup_low=2.0)), Utilisation()(failed("timeout"))
        (0.5, 0.0)
    """

    estimate: Estimate = "low"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, "eager")
        if speedup is None or feedback.timing is None or feedback.roofline is None or feedback.timing.baseline_us <= 0:
            return 0.0
        return min(1.0, max(0.0, feedback.roofline.ceiling_us) / feedback.timing.baseline_us * speedup)

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0
