"""The default value of a submission: the ladder, then performance once it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.ladder import Ladder
from pkb_gym.rewards.performance import LogPerformance
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right


@dataclass(frozen=True)
class LadderThenPerformance(Component):
    """The ladder's value, and the performance of a right kernel on top of it.

        r = ladder(feedback)                             not right
        r = ladder(feedback) + performance(feedback)     right and timed

    The slowest right kernel has a greater value than the best wrong one: 1 + performance.floor > ladder.almost. A
    submission with an integrity finding gets the floor, 0, as does a rejected one.

    Range: [0, 1 + performance.cap]; by default [0, 2], with 1 at the baseline and 2 at the roofline.
    Source: own; see `Ladder` and `LogPerformance`.

    Example:
        >>> from .examples import failed, timed
        >>> reward = LadderThenPerformance()
        >>> reward(failed("runtime_error")), reward(timed(baseline_us=100, roofline_us=25, speedup_low=2.0))
        (0.2, 1.5)
        >>> reward(timed(speedup_low=2.0, caught="late_output")), reward(failed("infrastructure"))
        (0.0, None)
    """

    ladder: Ladder = field(default_factory=Ladder)
    performance: LogPerformance = field(default_factory=lambda: LogPerformance(floor=-0.25))

    def __post_init__(self) -> None:
        if 1 + self.performance.floor <= self.ladder.almost:
            raise ValueError(
                f"a slow right kernel (1 + {self.performance.floor}) must earn more than one that is almost right "
                f"({self.ladder.almost}): raise performance.floor or lower ladder.almost"
            )

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return None if is_infrastructure_failure(feedback) else sum(self.parts(feedback).values())

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0 + self.performance.cap

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The value as "ladder", and as "performance" where a right kernel was timed."""
        rung = self.ladder(feedback)
        if rung is None:
            return {}
        speed = self.performance(feedback)
        if speed is None or feedback.timing is None or not is_right(feedback):
            return {"ladder": rung}
        return {"ladder": rung, "performance": speed}
