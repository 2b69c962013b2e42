"""The speed of a right kernel beside the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log2

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, Estimate, refuse_baseline, refuse_estimate, speedup_over
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right


def paid_speedup(feedback: Feedback, estimate: Estimate, baseline: Baseline) -> float | None:
    """The speedup that counts of a right kernel; None for one that is not right or was not timed.

    Example:
        >>> from .examples import failed, timed
        >>> paid_speedup(timed(speedup_low=1.5, speedup=2.0), "low", "eager")
        1.5
        >>> paid_speedup(failed("timeout"), "low", "eager") is None
        True
    """
    if feedback.timing is None or not is_right(feedback):
        return None
    speedup = speedup_over(feedback.timing, baseline, estimate)
    return speedup if isfinite(speedup) and speedup > 0 else None


@dataclass(frozen=True)
class Speedup(Component):
    """The speedup of a right kernel over the baseline, else 0.

        r = min(cap, baseline_us / candidate_us)

    Range: [0, cap].
    Source: the score of most work on kernels, among them Kevin (arXiv:2507.11948, section 3.2), which has no cap, and
    whose baseline is eager. The cap keeps the range finite; it lies far above the speedups of honest kernels.

    Example:
        >>> from .examples import failed, timed
        >>> Speedup()(timed(speedup=2.5)), Speedup()(failed("output_mismatch"))
        (2.5, 0.0)
    """

    estimate: Estimate = "point"
    cap: float = 1000.0
    baseline: Baseline = "eager"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)
        refuse_baseline(self.baseline)
        if not 0 < self.cap < float("inf"):
            raise ValueError(f"cap must be positive and finite, got {self.cap}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, self.baseline)
        return 0.0 if speedup is None else min(self.cap, speedup)

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, self.cap


@dataclass(frozen=True)
class LogSpeedup(Component):
    """Doublings d of a right kernel's speed, bent towards a floor; the floor for whatever is not right or not timed.

        d = log2(baseline_us / candidate_us)
        r = min(cap, d)           d >= 0
        r = d / (1 + d / floor)   d < 0

    A slow right kernel comes near the floor and never reaches it: of two right kernels the faster one earns more, up to
    the cap. The slope at the baseline is 1 on either side.

    Each further factor adds the same, whether the baseline is near the roofline or far from it; `Performance`
    divides by that distance.

    Range: [floor, cap]. Source: own; the logarithm is that of the geometric mean, by which speedups are averaged.

    Example:
        >>> from .examples import failed, timed
        >>> LogSpeedup()(timed(speedup_low=4.0)), LogSpeedup()(timed(speedup_low=0.5)), LogSpeedup()(failed("timeout"))
        (2.0, -0.6666666666666666, -2.0)
    """

    floor: float = -2.0
    cap: float = 5.0
    estimate: Estimate = "low"
    baseline: Baseline = "better"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)
        refuse_baseline(self.baseline)
        refuse_limits(self.floor, self.cap)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, self.baseline)
        if speedup is None:
            return self.floor
        doublings = log2(speedup)
        if doublings >= 0:
            return min(self.cap, doublings)
        return doublings / (1 + doublings / self.floor) if self.floor else 0.0

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return self.floor, self.cap


def refuse_limits(floor: float, cap: float) -> None:
    """Raises ValueError unless 0 lies between two finite limits."""
    if not (isfinite(floor) and isfinite(cap) and floor <= 0 <= cap):
        raise ValueError(f"finite floor <= 0 <= cap are needed, got {floor} and {cap}")
