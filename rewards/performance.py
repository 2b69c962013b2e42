"""The speed of a right kernel, on a scale between the baseline and the speed that is known to be reachable."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.problems.expert_times import expert_times
from pkb_gym.rewards.baseline import Baseline, baseline_us, refuse_baseline, speedup_over
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure
from pkb_gym.rewards.speedup import paid_speedup

EXPERTS_EXPONENT = 0.3
"""Part of the distance from the baseline to the roofline, on a log scale, that experts have gone. The median of 110
measurements is 0.32 (`python -m benchmarks.reachable_speedups`: 1 to 4 ranks on the CPU, 1 and 2 H200, sizes tiny to
large; the quantiles of 10 and 90 % are 0.14 and 0.51). The medians by device and size lie between 0.28 and 0.38 but
for size tiny on GPUs, 0.09. In the median an expert's speedup is predicted within a factor of 1.6."""

MIN_REACHABLE = 2.0
"""Least speedup that is taken for reachable: nearer to the roofline, noise would be paid."""

MAX_HEADROOM = 1e5
"""Greatest distance to the roofline: beyond, at sizes of no work, the time is that of the call itself."""

UNKNOWN_HEADROOM = 50.0
"""Distance to the roofline where it is unknown: about the median of the measurements at size `published` on the CPU,
48."""


def reachable_speedup(feedback: Feedback, baseline: Baseline = "better") -> float:
    """The speedup over the baseline that is known to be reachable.

        S = baseline_us / expert_us               the expert was measured under these conditions (`expert_us`)
        S = (baseline_us / ceiling_us) ** 0.3     it was not

    S is at least 2, and at most 31.7, so that small steps are visible on each scale. The ceiling
    (`Roofline.ceiling_us`) is the least time of the usual algorithm. Experts come nowhere near it where little is to be
    done: the exponent is what they reach (`EXPERTS_EXPONENT`).

    Range: [2, 31.7]. Source: own.

    Raises:
        ValueError: The kernel was not timed.

    Example:
        >>> from .examples import timed
        >>> reachable_speedup(timed(baseline_us=1000, roofline_us=1)), reachable_speedup(timed(roofline_us=50))
        (7.943282347242814, 2.0)
    """
    if feedback.timing is None:
        raise ValueError(f"{feedback.problem}: not timed; the furthest stage was {feedback.stage}")
    us, measured_us = baseline_us(feedback.timing, baseline), expert_us(feedback)
    if measured_us is not None:
        return float(min(max(MIN_REACHABLE, us / measured_us), MAX_HEADROOM**EXPERTS_EXPONENT))
    headroom = UNKNOWN_HEADROOM
    if feedback.roofline is not None:
        ceiling_us = feedback.roofline.ceiling_us
        headroom = us / ceiling_us if ceiling_us > us / MAX_HEADROOM else MAX_HEADROOM
    return max(MIN_REACHABLE, float(max(1.0, headroom) ** EXPERTS_EXPONENT))


def expert_us(feedback: Feedback) -> float | None:
    """The time of the problem's expert under the conditions of an evaluation, in microseconds; None if unknown.

    Conditions are size, dtype, number of ranks, one rank on each GPU, and the name of the GPUs.
    """
    config = feedback.config
    if config.device != "cuda" or config.ranks_per_gpu > 1:
        return None
    conditions = (config.size, config.dtype, config.world_size, feedback.environment.hardware)
    for time in expert_times(feedback.problem):
        if conditions == (time.size, time.dtype, time.world_size, time.gpu):
            return time.expert_us
    return None


def performance(feedback: Feedback, baseline: Baseline = "better") -> float:
    """Places a kernel between one that never ends (-1), the baseline (0) and one that takes no time (1).

        p = 1 - 10 ** -d     s >= 1            d = log(s) / log(S)
        p = d / (1 - d)      s < 1

    s is the lower end of the speedup's 95 % interval, so that noise is never paid, and S is `reachable_speedup`, where
    p is 0.9. For S = 10, a right kernel's p is the share of the baseline's time that it saves. Every further factor
    adds, and less so beyond what is known to be reachable; of two slow kernels the faster one has the greater p.

    Range: [-1, 1]. Source: own.

    Raises:
        ValueError: The kernel was not timed, or its speedup is not positive.

    Example:
        >>> from .examples import timed
        >>> def at(speedup, roofline_us=100 / 10 ** (1 / 0.3)):
        ...     return round(performance(timed(baseline_us=100, roofline_us=roofline_us, speedup_low=speedup)), 2)
        >>> [at(speedup) for speedup in (0.5, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0)]
        [-0.23, 0.0, 0.09, 0.33, 0.5, 0.8, 0.9]
        >>> [at(speedup, roofline_us=50) for speedup in (1.1, 1.5, 2.0)]
        [0.27, 0.74, 0.9]
    """
    reachable = reachable_speedup(feedback, baseline)
    assert feedback.timing is not None
    speedup = speedup_over(feedback.timing, baseline, "low")
    if not (isfinite(speedup) and speedup > 0):
        raise ValueError(f"{feedback.problem}: speedup_low must be positive, got {speedup}")
    distance = log(speedup) / log(reachable)
    return 1 - 10**-distance if distance >= 0 else distance / (1 - distance)


@dataclass(frozen=True)
class Performance(Component):
    """`performance` of a right kernel; -1 for whatever is not right or not timed.

    Range: [-1, 1]. Source: own; see `performance`.

    Example:
        >>> from .examples import failed, timed
        >>> Performance()(timed(speedup_low=1.0)), Performance()(failed("output_mismatch"))
        (0.0, -1.0)
    """

    baseline: Baseline = "better"

    def __post_init__(self) -> None:
        refuse_baseline(self.baseline)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        if paid_speedup(feedback, "low", self.baseline) is None:
            return -1.0
        return performance(feedback, self.baseline)

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return -1.0, 1.0
