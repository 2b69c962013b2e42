"""Shared parts of sums, products and selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Component


def joined(values: Sequence[Component], feedback: Feedback, join: Callable[[Sequence[float]], float]) -> float | None:
    """One value of all; None where one of them is None."""
    found = [value(feedback) for value in values]
    valid = [value for value in found if value is not None]
    return float(join(valid)) if len(valid) == len(found) else None


def flatten(whole: Component, field: str, values: Sequence[Component]) -> None:
    """Sets a field to the values, where those of the whole's own class are replaced by theirs.

    Raises:
        ValueError: fewer than two.
    """
    flat: list[Component] = []
    for value in values:
        flat += getattr(value, field) if type(value) is type(whole) else (value,)
    object.__setattr__(whole, field, tuple(flat))
    refuse_few(whole, flat)


def refuse_few(whole: Component, values: Sequence[Component]) -> None:
    """Raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError(f"{type(whole).__name__} needs at least two values, got {len(values)}")


def refuse_infinite(whole: Component) -> None:
    """Raises ValueError for what may exceed the range of floating-point numbers, or holds one that is not finite."""
    if not all(isfinite(bound) for bound in whole.bounds()):
        raise ValueError(f"a reward must be finite, and this may become {whole.bounds()}: {whole!r}")


def in_brackets(value: Component, *kinds: type[Component]) -> str:
    """The form of a value within another: in brackets if it is of one of these kinds."""
    return f"({value!r})" if isinstance(value, kinds) else repr(value)
