"""The base of every reward of this package, and the operators that compose rewards.

A composed reward is a frozen object that prints as it was written, so that `eval(repr(reward)) == reward`, and goes
through JSON by `records`. Sums of sums are flattened. After an infrastructure failure every composition is None. A
composition that may exceed the range of floating-point numbers is refused when it is built.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, TypeAlias

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.reward import is_infrastructure_failure

Bounds: TypeAlias = tuple[float, float]
"""Least and greatest value, both finite."""


class Recorded(ABC):
    """A `Reward` that can be written down, as a frozen dataclass: its class by name, its fields by theirs.

    `records` reads and writes it. Deriving from this class is all that it takes, also outside this package.

    Raises:
        TypeError: Two classes have the same name.
    """

    registry: ClassVar[dict[str, type[Recorded]]] = {}
    """Class by name, of all that may stand in a record."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        there = Recorded.registry.setdefault(cls.__name__, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__module__}.{cls.__qualname__}: {there.__module__} has a {cls.__name__} already")
        Recorded.registry[cls.__name__] = cls

    @abstractmethod
    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, as `Reward` describes it."""


class Component(Recorded, abstract=True):
    """A reward of one submission, with operators that compose rewards.

        a + b, a - b, 0.3 * a                   sums and multiples; numbers stand for themselves
        a.clip(0, 1)                            within limits
        a.where(condition, otherwise=0)         a where the condition is positive

    A composed reward prints as it is written, and holds no state. After an infrastructure failure every composition is
    None.

    Example:
        >>> from pkb_gym.rewards import Correctness, Speedup
        >>> from .examples import failed, timed
        >>> reward = 0.3 * Correctness() + Speedup().clip(0, 3)
        >>> reward
        0.3 * Correctness() + Speedup(estimate='point', cap=1000.0, baseline='eager').clip(0.0, 3.0)
        >>> reward(timed(speedup=2.0)), reward(failed("runtime_error")), reward(failed("infrastructure"))
        (2.3, 0.0, None)
    """

    @abstractmethod
    def bounds(self) -> Bounds:
        """Least and greatest value, over all feedback."""

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """Its value by the name of its class, in snake case; see `ItemisedReward`."""
        value = self(feedback)
        return {} if value is None else {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower(): value}

    def __add__(self, other: Component | float) -> Sum:
        return Sum((self, component(other)))

    def __radd__(self, other: float) -> Sum:
        return Sum((component(other), self))

    def __sub__(self, other: Component | float) -> Sum:
        return Sum((self, -component(other)))

    def __rsub__(self, other: float) -> Sum:
        return Sum((component(other), -self))

    def __neg__(self) -> Component:
        return Scale(-1.0, self)

    def __mul__(self, other: float) -> Scale:
        return Scale(float(other), self)

    __rmul__ = __mul__

    def clip(self, low: float, high: float) -> Clip:
        """Its value, but no less than `low` and no more than `high`."""
        return Clip(self, float(low), float(high))

    def where(self, condition: Component, otherwise: Component | float = 0.0) -> Where:
        """Its value where the condition's is greater than 0, else the other one's."""
        return Where(self, condition, component(otherwise))


@dataclass(frozen=True)
class Constant(Component):
    """The same for every submission.

    Range: {value}.

    Example:
        >>> from .examples import timed
        >>> Constant(0.5)(timed())
        0.5
    """

    value: float

    def __post_init__(self) -> None:
        _refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return None if is_infrastructure_failure(feedback) else self.value

    def bounds(self) -> Bounds:
        """The value, twice."""
        return self.value, self.value

    def __neg__(self) -> Constant:
        return Constant(-self.value)


@dataclass(frozen=True)
class Scale(Component):
    """r = factor * value.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> from .examples import timed
        >>> (0.3 * Correctness())(timed())
        0.3
    """

    factor: float
    value: Component

    def __post_init__(self) -> None:
        _refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        value = self.value(feedback)
        return None if value is None else self.factor * value

    def bounds(self) -> Bounds:
        """The bounds of the value, scaled."""
        low, high = sorted(self.factor * bound for bound in self.value.bounds())
        return low, high

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The parts of the value, scaled."""
        return {name: self.factor * part for name, part in self.value.parts(feedback).items()}

    def __neg__(self) -> Scale:
        return Scale(-self.factor, self.value)

    def __repr__(self) -> str:
        return f"{self.factor!r} * {_operand(self.value)}"


@dataclass(frozen=True)
class Sum(Component):
    """r = terms[0] + terms[1] + ...

    Example:
        >>> from pkb_gym.rewards import Correctness, FastP
        >>> from .examples import timed
        >>> reward = Correctness() - 0.25 * FastP(2.0)
        >>> reward
        Correctness() - 0.25 * FastP(p=2.0, estimate='point', baseline='eager')
        >>> reward(timed(speedup=3.0)), dict(reward.parts(timed(speedup=3.0)))
        (0.75, {'correctness': 1.0, 'fast_p': -0.25})
    """

    terms: tuple[Component, ...]

    def __post_init__(self) -> None:
        flat = tuple(one for term in self.terms for one in (term.terms if isinstance(term, Sum) else (term,)))
        if len(flat) < 2:
            raise ValueError(f"Sum needs at least two values, got {len(flat)}")
        object.__setattr__(self, "terms", flat)
        _refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        found = [term(feedback) for term in self.terms]
        valid = [value for value in found if value is not None]
        return float(sum(valid)) if len(valid) == len(found) else None

    def bounds(self) -> Bounds:
        """The sums of both bounds of all terms."""
        lows, highs = zip(*(term.bounds() for term in self.terms), strict=True)
        return sum(lows), sum(highs)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The parts of all terms; parts of the same name are added."""
        found: dict[str, float] = {}
        for term in self.terms:
            for name, part in term.parts(feedback).items():
                found[name] = found.get(name, 0.0) + part
        return found

    def __repr__(self) -> str:
        text = repr(self.terms[0])
        for term in self.terms[1:]:
            if isinstance(term, Scale) and term.factor < 0 and not isinstance(term.value, Scale | Constant):
                text += f" - {_operand(term.value, Sum) if term.factor == -1 else repr(-term)}"
            else:
                text += f" + {term!r}"
        return text


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
        _refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        value = self.value(feedback)
        return None if value is None else min(self.high, max(self.low, value))

    def bounds(self) -> Bounds:
        """The bounds of the value, clipped."""
        low, high = (min(self.high, max(self.low, bound)) for bound in self.value.bounds())
        return low, high

    def __repr__(self) -> str:
        return f"{_operand(self.value)}.clip({self.low!r}, {self.high!r})"


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
        """The value of one submission, or None."""
        chosen = self._chosen(feedback)
        return None if chosen is None else chosen(feedback)

    def bounds(self) -> Bounds:
        """The outer ones of both values."""
        (low, high), (other_low, other_high) = self.value.bounds(), self.otherwise.bounds()
        return min(low, other_low), max(high, other_high)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The parts of the chosen value."""
        chosen = self._chosen(feedback)
        return {} if chosen is None else chosen.parts(feedback)

    def _chosen(self, feedback: Feedback) -> Component | None:
        condition = self.condition(feedback)
        if condition is None:
            return None
        return self.value if condition > 0 else self.otherwise

    def __repr__(self) -> str:
        other = self.otherwise.value if isinstance(self.otherwise, Constant) else self.otherwise
        return f"{_operand(self.value)}.where({self.condition!r}, otherwise={other!r})"


def component(value: Component | float) -> Component:
    """A number as a `Constant`; a component as it is.

    Raises:
        TypeError: The value is neither.
    """
    if isinstance(value, Component):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"rewards are composed of components and numbers, got {value!r}")
    return Constant(float(value))


def _refuse_infinite(whole: Component) -> None:
    """Raises ValueError for a reward whose bounds are not finite."""
    if not all(isfinite(bound) for bound in whole.bounds()):
        raise ValueError(f"a reward must be finite, and this may become {whole.bounds()}: {whole!r}")


def _operand(value: Component, *kinds: type[Component]) -> str:
    """The text of an operand: in brackets if it is of one of these kinds, by default any that has an operator."""
    return f"({value!r})" if isinstance(value, kinds or (Sum, Scale)) else repr(value)
