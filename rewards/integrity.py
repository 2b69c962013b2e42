"""Rewards that depend on integrity findings: a submission with one falls to the floor."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_caught, is_infrastructure_failure


@dataclass(frozen=True)
class Honest(Component):
    """1 without an integrity finding, else 0; a condition for `where`.

    Range: {0, 1}. Source: own; the findings are those of `Feedback.integrity`.

    Example:
        >>> from .examples import failed, timed
        >>> Honest()(timed()), Honest()(failed("runtime_error")), Honest()(timed(caught="late_output"))
        (1.0, 1.0, 0.0)
    """

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return None if is_infrastructure_failure(feedback) else float(not is_caught(feedback))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0


@dataclass(frozen=True)
class IntegrityFloor(Component):
    """The floor for a submission with an integrity finding; for any other its value, and no less than the floor.

        r = floor               caught
        r = max(floor, value)   honest

    So cheating never has a greater value than the worst honest attempt.

    Range: [floor, greatest value]. Source: own.

    Example:
        >>> from pkb_gym.rewards import Speedup
        >>> from .examples import timed
        >>> reward = IntegrityFloor(Speedup(), floor=-1.0)
        >>> reward(timed(speedup=2.0)), reward(timed(speedup=50.0, caught="beats_roofline"))
        (2.0, -1.0)
    """

    value: Component
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not isfinite(self.floor):
            raise ValueError(f"the floor must be finite, got {self.floor}")

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        value = self.value(feedback)
        if value is None:
            return None
        return self.floor if is_caught(feedback) else max(self.floor, value)

    def bounds(self) -> Bounds:
        """See `Component`."""
        return self.floor, max(self.floor, self.value.bounds()[1])
