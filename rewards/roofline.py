"""The speed of a right kernel beside the time of its work at the hardware's peaks."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, Estimate, refuse_baseline, refuse_estimate
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.performance import headroom
from pkb_gym.rewards.reward import is_infrastructure_failure
from pkb_gym.rewards.speedup import paid_speedup, refuse_limits


@dataclass(frozen=True)
class RooflinePosition(Component):
    """The share of the avoidable time that a right kernel avoids: 0 at the baseline, 1 at the roofline.

        r = (baseline_us - candidate_us) / (baseline_us - roofline_us) = (1 - 1 / speedup) / (1 - 1 / headroom)

    The headroom is clamped, see `headroom`. The value is linear in the time saved, where `LogPerformance` is linear in
    factors: the first factors earn most of it.

    Range: [floor, 1]; the floor for whatever is not right or not timed.
    Source: own; the roofline model is that of Williams, Waterman, Patterson (CACM 52(4), 2009).

    Example:
        >>> from .examples import timed
        >>> place = RooflinePosition()
        >>> [round(place(timed(baseline_us=100, roofline_us=25, speedup_low=low)), 3) for low in (1.0, 2.0, 4.0)]
        [0.0, 0.667, 1.0]
    """

    floor: float = -1.0
    estimate: Estimate = "low"
    baseline: Baseline = "better"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)
        refuse_baseline(self.baseline)
        refuse_limits(self.floor, 1.0)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, self.baseline)
        if speedup is None:
            return self.floor
        return min(1.0, max(self.floor, (1 - 1 / speedup) / (1 - 1 / headroom(feedback, self.baseline))))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return self.floor, 1.0


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
        """See `Reward`."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, "eager")
        if speedup is None or feedback.timing is None or feedback.roofline is None or feedback.timing.baseline_us <= 0:
            return 0.0
        return min(1.0, max(0.0, feedback.roofline.ceiling_us) / feedback.timing.baseline_us * speedup)

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0
