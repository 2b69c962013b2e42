"""Pays for a source that was compiled and not run, which by itself earns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import was_only_compiled


@dataclass(frozen=True)
class PaidForCompiling(Component):
    """The value, and a fixed one where a source was compiled on a machine without GPUs that could run it.

        r = compiled  failure `compiled_only`
        r = value     everything else

    Other rewards are None there: nothing is known of a kernel that never ran.

    Range: that of the value, and {compiled}. Source: own.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> from .examples import failed, timed
        >>> reward = PaidForCompiling(Correctness(), compiled=0.25)
        >>> reward(timed()), reward(failed("compiled_only")), Correctness()(failed("compiled_only"))
        (1.0, 0.25, None)
    """

    value: Component
    compiled: float = 0.2

    def __post_init__(self) -> None:
        if not isfinite(self.compiled):
            raise ValueError(f"compiled must be finite, got {self.compiled}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return self.compiled if was_only_compiled(feedback) else self.value(feedback)

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        low, high = self.value.bounds()
        return min(low, self.compiled), max(high, self.compiled)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The parts of the value, or "compiled"."""
        return {"compiled": self.compiled} if was_only_compiled(feedback) else self.value.parts(feedback)
