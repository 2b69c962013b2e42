"""Limits and choices of rewards; see `algebra`, and `Component` for how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.algebra import Constant, Product, Scale, Sum
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.composition import in_brackets, joined, refuse_few, refuse_infinite

INFIX = (Sum, Scale, Product)
"""Written with operators: what follows by a dot needs brackets around them."""


@dataclass(frozen=True)
class Clip(Component):
    """r = min(high, max(low, value)).

    Range: [low, high].

    Example:
        >>> from pkb_gym.rewards import Speedup
        >>> from .examples import timed
        >>> Speedup().clip(0.5, 3)(timed(speedup=7.0))
        3.0
    """

    value: Component
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low <= high is needed, got {self.low} and {self.high}")
        refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        value = self.value(feedback)
        return None if value is None else min(self.high, max(self.low, value))

    def bounds(self) -> Bounds:
        """See `Component`."""
        low, high = (min(self.high, max(self.low, bound)) for bound in self.value.bounds())
        return low, high

    def __repr__(self) -> str:
        return f"{in_brackets(self.value, *INFIX)}.clip({self.low!r}, {self.high!r})"


@dataclass(frozen=True)
class Where(Component):
    """A gate: the value where the condition's is greater than 0, else the other one.

        r = value if condition > 0 else otherwise

    Example:
        >>> from pkb_gym.rewards import Correctness, Speedup
        >>> from .examples import failed, timed
        >>> reward = Speedup(cap=3.0).where(Correctness(), otherwise=-1)
        >>> reward(timed(speedup=2.0)), reward(failed("runtime_error"))
        (2.0, -1.0)
    """

    value: Component
    condition: Component
    otherwise: Component

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        chosen = self._chosen(feedback)
        return None if chosen is None else chosen(feedback)

    def bounds(self) -> Bounds:
        """See `Component`."""
        (low, high), (other_low, other_high) = self.value.bounds(), self.otherwise.bounds()
        return min(low, other_low), max(high, other_high)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`: those of what was chosen."""
        chosen = self._chosen(feedback)
        return {} if chosen is None else chosen.parts(feedback)

    def _chosen(self, feedback: Feedback) -> Component | None:
        condition = self.condition(feedback)
        if condition is None:
            return None
        return self.value if condition > 0 else self.otherwise

    def __repr__(self) -> str:
        other = self.otherwise.value if isinstance(self.otherwise, Constant) else self.otherwise
        value = in_brackets(self.value, *INFIX)
        return f"{value}.where({self.condition!r}, otherwise={other!r})"


@dataclass(frozen=True)
class Maximum(Component):
    """r = max(of[0], of[1], ...).

    Example:
        >>> from pkb_gym.rewards import Correctness, FastP
        >>> from .examples import timed
        >>> Maximum((0.5 * Correctness(), FastP(2.0)))(timed(speedup=1.5))
        0.5
    """

    of: tuple[Component, ...]

    def __post_init__(self) -> None:
        refuse_few(self, self.of)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return joined(self.of, feedback, max)

    def bounds(self) -> Bounds:
        """See `Component`."""
        lows, highs = zip(*(one.bounds() for one in self.of), strict=True)
        return max(lows), max(highs)


@dataclass(frozen=True)
class Minimum(Component):
    """r = min(of[0], of[1], ...).

    Example:
        >>> from pkb_gym.rewards import Correctness, FastP
        >>> from .examples import timed
        >>> Minimum((0.5 * Correctness(), FastP(2.0)))(timed(speedup=1.5))
        0.0
    """

    of: tuple[Component, ...]

    def __post_init__(self) -> None:
        refuse_few(self, self.of)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return joined(self.of, feedback, min)

    def bounds(self) -> Bounds:
        """See `Component`."""
        lows, highs = zip(*(one.bounds() for one in self.of), strict=True)
        return min(lows), min(highs)


@dataclass(frozen=True)
class Named(Component):
    """The value under a name of its own in `parts`.

    Example:
        >>> from pkb_gym.rewards import Correctness, Speedup
        >>> from .examples import timed
        >>> dict((0.3 * Correctness().named("right") + Speedup().named("speed")).parts(timed(speedup=2.0)))
        {'right': 0.3, 'speed': 2.0}
    """

    value: Component
    name: str

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return self.value(feedback)

    def bounds(self) -> Bounds:
        """See `Component`."""
        return self.value.bounds()

    @property
    def label(self) -> str:
        """The name."""
        return self.name

    def __repr__(self) -> str:
        return f"{in_brackets(self.value, *INFIX)}.named({self.name!r})"
