"""Sums and products of rewards; `selection` holds limits and choices. See `Component` for how they are written.

Each is a frozen object that prints as it was written, so that `eval(repr(reward)) == reward`, and goes through JSON and
YAML by `records`. Sums and products of sums and products are flattened. None of any operand, an infrastructure failure,
is None of the whole. Whatever might exceed the range of floating-point numbers is refused when it is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.composition import flatten, in_brackets, joined, refuse_infinite
from pkb_gym.rewards.reward import is_infrastructure_failure


def component(value: Component | float) -> Component:
    """A number becomes a `Constant`; a component stays as it is.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, Component):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"rewards are composed of components and numbers, got {value!r}")
    return Constant(float(value))


def negative(value: Component) -> Component:
    """Its value with the other sign."""
    if isinstance(value, Constant):
        return Constant(-value.value)
    return Scale(-value.factor, value.value) if isinstance(value, Scale) else Scale(-1.0, value)


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
        refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return None if is_infrastructure_failure(feedback) else self.value

    def bounds(self) -> Bounds:
        """See `Component`."""
        return self.value, self.value


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
        refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        value = self.value(feedback)
        return None if value is None else self.factor * value

    def bounds(self) -> Bounds:
        """See `Component`."""
        low, high = sorted(self.factor * bound for bound in self.value.bounds())
        return low, high

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`: those of the value, scaled."""
        return {name: self.factor * part for name, part in self.value.parts(feedback).items()}

    def __repr__(self) -> str:
        return f"{self.factor!r} * {in_brackets(self.value, Sum, Scale, Product)}"


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
        flatten(self, "terms", self.terms)
        refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return joined(self.terms, feedback, sum)

    def bounds(self) -> Bounds:
        """See `Component`."""
        lows, highs = zip(*(term.bounds() for term in self.terms), strict=True)
        return sum(lows), sum(highs)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`: those of all terms; parts of the same name are added."""
        found: dict[str, float] = {}
        for term in self.terms:
            for name, part in term.parts(feedback).items():
                found[name] = found.get(name, 0.0) + part
        return found

    def __repr__(self) -> str:
        text = repr(self.terms[0])
        for term in self.terms[1:]:
            taken_off = isinstance(term, Scale) and term.factor < 0 and not isinstance(term.value, Scale | Constant)
            text += f" - {_positive(term)}" if isinstance(term, Scale) and taken_off else f" + {term!r}"
        return text


@dataclass(frozen=True)
class Product(Component):
    """r = factors[0] * factors[1] * ...; with a factor that is 0 or 1, a gate.

    Example:
        >>> from pkb_gym.rewards import FastP, Speedup
        >>> from .examples import timed
        >>> (Speedup(cap=4.0) * FastP(1.0))(timed(speedup=2.0)), (Speedup(cap=4.0) * FastP(1.0))(timed(speedup=0.5))
        (2.0, 0.0)
    """

    factors: tuple[Component, ...]

    def __post_init__(self) -> None:
        flatten(self, "factors", self.factors)
        refuse_infinite(self)

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return joined(self.factors, feedback, math.prod)

    def bounds(self) -> Bounds:
        """See `Component`."""

        def join(left: Bounds, right: Bounds) -> Bounds:
            corners = [a * b for a, b in product(left, right)]
            return min(corners), max(corners)

        return reduce(join, (factor.bounds() for factor in self.factors))

    def __repr__(self) -> str:
        return " * ".join(in_brackets(factor, Sum, Scale) for factor in self.factors)


def _positive(term: Scale) -> str:
    """The text for it behind a minus sign."""
    return in_brackets(term.value, Sum) if term.factor == -1 else repr(Scale(-term.factor, term.value))
