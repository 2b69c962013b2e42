"""The default value of a submission: the ladder, then performance once it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.ladder import Ladder
from pkb_gym.rewards.performance import Performance
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right


@dataclass(frozen=True)
class LadderThenPerformance(Component):
    """The ladder's value, and the weighted performance p of a right kernel on top of it.

        r = ladder(feedback)                not right
        r = ladder(feedback) + faster * p   right, timed, p >= 0
        r = ladder(feedback) + slower * p   right, timed, p < 0

    The slowest right kernel has a greater value than the best wrong one: 1 - slower > ladder.almost.

    To leave out a synchronisation must not pay. It multiplies a right kernel's speed and is noticed with probability q,
    which then has the value of a breach: with the defaults the expected gain is negative for every q of 20 % or more,
    as faster is less than (1 - ladder.breach) / 4; of a kernel slower than the baseline, for factors up to 2.

    Range: [ladder.breach, 1 + faster]; by default [-0.35, 1.3], with 1 at the baseline and 1.27 at the speed that is
    known to be reachable.
    Source: own; see `Ladder` and `Performance`.

    Attributes:
        ladder: Value of a submission that is not right.
        performance: Speed of a right one, in [-1, 1].
        faster: Weight of a performance above 0.
        slower: Weight of a performance below 0.

    Example:
        >>> from .examples import failed, timed
        >>> reward = LadderThenPerformance()
        >>> reward(failed("runtime_error")), round(reward(timed(baseline_us=100, roofline_us=50, speedup_low=2.0)), 3)
        (0.03, 1.27)
        >>> reward(timed(speedup_low=2.0, caught="late_output")), reward(failed("infrastructure"))
        (-0.35, None)
    """

    ladder: Ladder = field(default_factory=Ladder)
    performance: Performance = field(default_factory=Performance)
    faster: float = 0.3
    slower: float = 0.15

    def __post_init__(self) -> None:
        if self.faster < 0 or self.slower < 0:
            raise ValueError(f"faster and slower must not be negative, got {self.faster} and {self.slower}")
        if 1 - self.slower <= self.ladder.almost:
            raise ValueError(
                f"a slow right kernel (1 - {self.slower}) must earn more than one that is almost right "
                f"({self.ladder.almost}): lower slower or ladder.almost"
            )

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return None if is_infrastructure_failure(feedback) else sum(self.parts(feedback).values())

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return self.ladder.breach, 1.0 + self.faster

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The value as "ladder", and as "performance" where a right kernel was timed."""
        rung = self.ladder(feedback)
        if rung is None:
            return {}
        speed = self.performance(feedback)
        if speed is None or feedback.timing is None or not is_right(feedback):
            return {"ladder": rung}
        return {"ladder": rung, "performance": speed * (self.faster if speed >= 0 else self.slower)}
