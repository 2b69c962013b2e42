"""The base of every reward of this package: a small frozen object that is recorded by name, and joins with others."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from pkb_gym.engine.records.feedback import Feedback

if TYPE_CHECKING:
    from pkb_gym.rewards.algebra import Product, Scale, Sum
    from pkb_gym.rewards.selection import Clip, Named, Where

Bounds: TypeAlias = tuple[float, float]
"""Least and greatest value, both finite."""


class Recorded:
    """A frozen dataclass that can be written down: its class by name, its fields by theirs; see `records`.

    Deriving from it is all that it takes to be read back, also outside this package.

    Raises:
        TypeError: two classes of the same name.
    """

    registry: ClassVar[dict[str, type[Recorded]]] = {}
    """Name -> class, of all that may stand in a record."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        there = Recorded.registry.setdefault(cls.__name__, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__module__}.{cls.__qualname__}: {there.__module__} has a {cls.__name__} already")
        Recorded.registry[cls.__name__] = cls


class RecordedReward(Recorded, ABC, abstract=True):
    """A `Reward` that can be written down, whether or not it can be part of a larger one."""

    @abstractmethod
    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""


class Component(RecordedReward, abstract=True):
    """A reward of one submission, with operators that compose rewards.

        a + b, a - b, 0.3 * a, a * b            sums and products; numbers stand for themselves
        a.clip(0, 1)                            within limits
        a.where(condition, otherwise=0)         a where the condition is positive
        a.named("speed")                        its share of a sum is listed by that name

    `Maximum` and `Minimum` take several. A composed reward prints as it is written, and holds no state. After an
    infrastructure failure every composition is None.

    Example:
        >>> from pkb_gym.rewards import Correctness, Speedup
        >>> from .examples import failed, timed
        >>> reward = 0.3 * Correctness() + Speedup().clip(0, 3)
        >>> reward
        0.3 * Correctness() + Speedup(estimate='point', cap=1000.0, baseline='eager').clip(0.0, 3.0)
        >>> reward(timed(speedup=2.0)), reward(failed("runtime_error")), reward(failed("infrastructure"))
        (2.3, 0.0, None)
    """

    untrusted: ClassVar[bool] = False
    """Whether its value rests on what ranks report, which a candidate can forge; see `rests_on_rank_reports`."""

    @abstractmethod
    def bounds(self) -> Bounds:
        """Least and greatest value, whatever was found."""

    @property
    def label(self) -> str:
        """The name that its share of a sum is listed by."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`."""
        value = self(feedback)
        return {} if value is None else {self.label: value}

    # `algebra` builds on this class, so each operator imports it when it is used.

    def __add__(self, other: Component | float) -> Sum:
        from pkb_gym.rewards.algebra import Sum, component

        return Sum((self, component(other)))

    def __radd__(self, other: float) -> Sum:
        from pkb_gym.rewards.algebra import Sum, component

        return Sum((component(other), self))

    def __sub__(self, other: Component | float) -> Sum:
        from pkb_gym.rewards.algebra import Sum, component, negative

        return Sum((self, negative(component(other))))

    def __rsub__(self, other: float) -> Sum:
        from pkb_gym.rewards.algebra import Sum, component, negative

        return Sum((component(other), negative(self)))

    def __neg__(self) -> Component:
        from pkb_gym.rewards.algebra import negative

        return negative(self)

    def __mul__(self, other: Component | float) -> Product | Scale:
        from pkb_gym.rewards.algebra import Product, Scale

        return Product((self, other)) if isinstance(other, Component) else Scale(float(other), self)

    def __rmul__(self, other: float) -> Scale:
        from pkb_gym.rewards.algebra import Scale

        return Scale(float(other), self)

    def clip(self, low: float, high: float) -> Clip:
        """Its value, but no less than `low` and no more than `high`."""
        from pkb_gym.rewards.selection import Clip

        return Clip(self, float(low), float(high))

    def where(self, condition: Component, otherwise: Component | float = 0.0) -> Where:
        """Its value where the condition's is greater than 0, else the other one's."""
        from pkb_gym.rewards.algebra import component
        from pkb_gym.rewards.selection import Where

        return Where(self, condition, component(otherwise))

    def named(self, name: str) -> Named:
        """The same value, listed by a name of its own where a reward says what it is made of."""
        from pkb_gym.rewards.selection import Named

        return Named(self, name)
