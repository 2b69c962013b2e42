"""The speed of a right kernel, on a log scale between the baseline and the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, baseline_us, refuse_baseline, speedup_over
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure
from pkb_gym.rewards.speedup import paid_speedup

MIN_HEADROOM = 1.25
"""Baselines nearer to the roofline are treated as this far from it, or noise in the denominator would be paid."""

MAX_HEADROOM = 1000.0
"""Baselines farther from the roofline, and those whose roofline is unknown or zero, are treated as this far from it."""


def headroom(feedback: Feedback, baseline: Baseline = "better") -> float:
    """Speedup at the roofline, baseline_us / roofline_us, clamped to [MIN_HEADROOM, MAX_HEADROOM].

    roofline_us is the ceiling (`Roofline.ceiling_us`), which a kernel of the usual algorithm can reach at best; the
    lower bound that no kernel beats is often far below, where no known kernel comes.

    Raises:
        ValueError: The kernel was not timed.
    """
    if feedback.timing is None:
        raise ValueError(f"{feedback.problem}: no headroom without timing; the furthest stage was {feedback.stage}")
    roofline_us = 0.0 if feedback.roofline is None else feedback.roofline.ceiling_us
    if roofline_us <= 0:
        return MAX_HEADROOM
    return min(MAX_HEADROOM, max(MIN_HEADROOM, baseline_us(feedback.timing, baseline) / roofline_us))


def log_performance(feedback: Feedback, baseline: Baseline = "better") -> float:
    """Places a kernel between the baseline (0) and the roofline (1) on a log scale.

        r = log(speedup_low) / log(baseline_us / roofline_us)

    speedup_low is the lower end of the 95 % interval, so that noise is never paid. The baseline is the faster one of
    eager PyTorch and its CUDA graphs unless another is asked for. The denominator is clamped, see `headroom`.

    Range: unbounded below, at most 1 for a kernel of the usual algorithm; more for a faster algorithm, or where the
    headroom was clamped.
    Source: own; the utilisation of the roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009) on a log scale,
    on which each further factor of speedup earns the same.

    Raises:
        ValueError: The kernel was not timed, or its speedup is not positive.

    Example:
        >>> from .examples import timed
        >>> log_performance(timed(baseline_us=100, roofline_us=25, speedup_low=2.0))
        0.5
        >>> log_performance(timed(baseline_us=100, captured_us=50, roofline_us=25, speedup_low=2.0))
        0.0
    """
    scale = log(headroom(feedback, baseline))
    assert feedback.timing is not None
    speedup = speedup_over(feedback.timing, baseline, "low")
    if not (isfinite(speedup) and speedup > 0):
        raise ValueError(f"{feedback.problem}: speedup_low must be positive, got {speedup}")
    return log(speedup) / scale


@dataclass(frozen=True)
class LogPerformance(Component):
    """`log_performance` p, bent towards a floor below the baseline; the floor for whatever is not right or not timed.

        r = min(cap, p)           p >= 0
        r = p / (1 + p / floor)   p < 0

    A slow right kernel comes near the floor and never reaches it: of two right kernels the faster one earns more, up to
    the cap. The slope at the baseline is 1 on either side.

    Range: [floor, cap]. Source: own; see `log_performance`.

    Example:
        >>> from .examples import failed, timed
        >>> reward = LogPerformance(floor=-0.25)
        >>> [round(reward(timed(speedup_low=speedup)), 3) for speedup in (0.001, 0.1, 1.0)]
        [-0.238, -0.217, 0.0]
        >>> reward(failed("output_mismatch"))
        -0.25
    """

    floor: float = -1.0
    cap: float = 1.0
    baseline: Baseline = "better"

    def __post_init__(self) -> None:
        refuse_baseline(self.baseline)
        if not self.floor <= 0 <= self.cap:
            raise ValueError(f"floor <= 0 <= cap is needed, got {self}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, "low", self.baseline)
        if speedup is None:
            return self.floor
        performance = log_performance(feedback, self.baseline)
        if performance >= 0:
            return min(self.cap, performance)
        return performance / (1 + performance / self.floor) if self.floor else 0.0

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return self.floor, self.cap
