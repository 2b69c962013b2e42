"""Named quantities of a problem, and the shapes made of them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard, TypeVar

from pkb_gym.engine.errors import AxisNotFound, SizeError

AxisValue: TypeAlias = "int | float | bool | str | None | tuple[AxisValue, ...]"
"""Numbers, modes, and (nested) tuples of them: ragged sizes, groups of ranks, lists of shapes."""

Kind = TypeVar("Kind")

ITEMSIZE = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "float8_e4m3fn": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element, for every dtype that a problem may name."""


@dataclass(frozen=True)
class Axes(Mapping[str, AxisValue]):
    """One rank's quantities, read by name.

    An attribute (`ax.M`) is a whole number; methods read every other kind and check it; `ax["M"]` is the value as it
    is. Every method raises SizeError where the axis holds something else, and AxisNotFound where there is no such axis.
    `number` reads an axis that has the name of a method.

    Attributes:
        entries: Values by axis name; always holds ``W`` (world size) and, except in `Trials.vary`, ``r`` (this rank).
        dtype: Floating dtype of the problem in this evaluation, for example ``"bfloat16"``.
        problem: Name of the problem, with which errors begin; empty in `derive` and `vary`, whose errors `Problem`
            completes.
        kept_leaves: Cache of `tensors`: by id, a declared argument or output and its tensors here.
    """

    entries: Mapping[str, AxisValue]
    dtype: str = "float32"
    problem: str = field(default="", compare=False)
    kept_leaves: dict[int, tuple[object, tuple[Any, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __getitem__(self, name: str) -> AxisValue:
        if name not in self.entries:
            raise AxisNotFound(self._missing(name))
        return self.entries[name]

    def __getattr__(self, name: str) -> int:
        entries = self.__dict__.get("entries")
        if entries is None:  # copy and pickle look for methods before there are any
            raise AttributeError(name)
        if name not in entries:
            raise AttributeError(self._missing(name))
        value = entries[name]
        return value if type(value) is int else self.number(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __reduce__(self) -> tuple[object, ...]:
        return Axes, (self.entries, self.dtype, self.problem)  # declarations need not be fit to travel

    def __or__(self, changes: Mapping[str, AxisValue]) -> dict[str, AxisValue]:
        return {**self.entries, **changes}

    def replace(self, **changes: AxisValue) -> Axes:
        """These axes with some added or replaced."""
        return Axes(self | changes, self.dtype, self.problem)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the problem's floating dtype."""
        return ITEMSIZE[self.dtype]

    def read(self, name: str, fits: Callable[[object], TypeGuard[Kind]], expected: str) -> Kind:
        """A value of the kind that `fits` accepts and `expected` names."""
        value = self[name]
        if not fits(value):
            raise self._unfit(name, expected)
        return value

    def number(self, name: str) -> int:
        """A whole number."""
        return self.read(name, _is_int, "a whole number")

    def number_or_none(self, name: str) -> int | None:
        """A whole number, or None where the size leaves it open."""
        return None if self[name] is None else self.read(name, _is_int, "a whole number or None")

    def real(self, name: str) -> float:
        """A number, whole or not."""
        return self.read(name, _is_real, "a number")

    def real_or_none(self, name: str) -> float | None:
        """A number, or None where the size leaves it open."""
        return None if self[name] is None else self.read(name, _is_real, "a number or None")

    def flag(self, name: str) -> bool:
        """True or False."""
        return self.read(name, _is_bool, "True or False")

    def text(self, name: str) -> str:
        """A string."""
        return self.read(name, _is_str, "a string")

    def one_of(self, name: str, choices: Collection[str]) -> str:
        """One of several strings."""
        value = self.text(name)
        if value not in choices:
            raise self._unfit(name, f"one of {', '.join(choices)}")
        return value

    def ints(self, name: str) -> tuple[int, ...]:
        """A tuple of whole numbers."""
        return self.read(name, _is_ints, "a tuple of whole numbers")

    def ints_or_none(self, name: str) -> tuple[int, ...] | None:
        """A tuple of whole numbers, or None where the size leaves it open."""
        return None if self[name] is None else self.read(name, _is_ints, "a tuple of whole numbers or None")

    def by_rank(self, name: str) -> tuple[int, ...]:
        """A whole number >= 0 for each rank, the first W of a tuple."""
        numbers = self.ints(name)[: self.W]
        if len(numbers) < self.W or min(numbers) < 0:
            raise self._unfit(name, f"a tuple of at least W={self.W} whole numbers >= 0")
        return numbers

    def int_lists(self, name: str) -> tuple[tuple[int, ...], ...]:
        """A tuple of tuples of whole numbers: groups of ranks, or a list for each rank."""
        return self.read(name, _is_int_lists, "a tuple of tuples of whole numbers")

    def real_lists(self, name: str) -> tuple[tuple[float, ...], ...]:
        """A tuple of tuples of numbers."""
        return self.read(name, _is_real_lists, "a tuple of tuples of numbers")

    def shapes(self, name: str) -> tuple[tuple[int, ...] | None, ...]:
        """The shapes of a list's tensors; None where an element is None."""
        return self.read(name, _is_shapes, "a tuple of shapes and None")

    def group_ranks(self, name: str) -> tuple[int, ...]:
        """The global ranks of the group that this rank is in, in order.

        Args:
            name: Name of an axis that holds a partition of the ranks; None for one group of all ranks.

        Raises:
            SizeError: this rank is in no group.
        """
        if self[name] is None:
            return tuple(range(self.W))
        for group in self.int_lists(name):
            if self.r in group:
                return group
        raise self._unfit(name, f"None or groups of ranks, one of them with rank {self.r}")

    def rank_axis(self, name: str, shift: int = 0) -> int:
        """The rank that an axis names, `shift` ranks on around the ring; negative values count from the last rank.

        Raises:
            SizeError: there is no such rank.
        """
        value = self.number(name)
        if not -self.W <= value < self.W:
            raise SizeError(self._named(f"axis {name}={value} must name a rank, {-self.W} .. {self.W - 1}"))
        return (value + shift) % self.W

    def divide(self, name: str, by: str) -> int:
        """The quotient of two axes, which must leave no remainder.

        Raises:
            SizeError: it does; the message names the two nearest values that would not.
        """
        value, divisor = self.number(name), self.number(by)
        if divisor < 1:
            raise self._unfit(by, "at least 1")
        if value % divisor:
            low = value // divisor * divisor
            nearest = f"nearest {low} and {low + divisor}"
            raise SizeError(self._named(f"axis {name}={value} must be a multiple of {by}={divisor}; {nearest}"))
        return value // divisor

    def _missing(self, name: str) -> str:
        return self._named(f"no axis {name!r}; there are {', '.join(sorted(self))}")

    def _unfit(self, name: str, expected: str) -> SizeError:
        return SizeError(self._named(f"axis {name}={reprlib.repr(self[name])} must be {expected}"))

    def _named(self, message: str) -> str:
        return f"{self.problem}: {message}" if self.problem else message


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int  # a bool is none


def _is_real(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _is_bool(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def _is_str(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


_ONLY_INTS = frozenset({int})


def _is_ints(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and _ONLY_INTS.issuperset(map(type, value))


def _is_int_lists(value: object) -> TypeGuard[tuple[tuple[int, ...], ...]]:
    return isinstance(value, tuple) and all(map(_is_ints, value))


def _is_real_lists(value: object) -> TypeGuard[tuple[tuple[float, ...], ...]]:
    return isinstance(value, tuple) and all(
        isinstance(item, tuple) and {*map(type, item)} <= {int, float} for item in value
    )


def _is_shape(value: object) -> TypeGuard[tuple[int, ...]]:
    return _is_ints(value) and (not value or min(value) >= 0)


def _is_shapes(value: object) -> TypeGuard[tuple[tuple[int, ...] | None, ...]]:
    return isinstance(value, tuple) and all(item is None or _is_shape(item) for item in value)


def divide(axes: Mapping[str, AxisValue], name: str, by: str) -> int:
    """axes[name] / axes[by]; see `Axes.divide`."""
    return (axes if isinstance(axes, Axes) else Axes(axes)).divide(name, by)


def frozen_axes(axes: Mapping[str, object]) -> dict[str, AxisValue]:
    """Axes that came as JSON, which has lists where axes have tuples.

    Raises:
        ValueError: a value is of no kind that an axis can have.
    """
    return {name: _frozen(value) for name, value in axes.items()}


def _frozen(value: object) -> AxisValue:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"an axis is a finite number, a text, True, False, None or a tuple of them, got {value!r}")


def resolve_dtype(dtype: str | None, ax: Axes) -> str:
    """A declared dtype's name.

    Args:
        dtype: Name of a dtype, or of an axis that holds one or None; None is the problem's floating dtype.
        ax: Axes of this rank.

    Raises:
        SizeError: the axis holds something else.
    """
    name = dtype if dtype is None or dtype in ITEMSIZE else ax[dtype]
    if name is None:
        return ax.dtype
    if not isinstance(name, str) or name not in ITEMSIZE:
        raise SizeError(f"{ax.problem}: axis {dtype}={name!r} must be one of {', '.join(ITEMSIZE)}")
    return name


def resolve_shape(shape: tuple[str | int, ...] | str, ax: Axes) -> tuple[int, ...]:
    """A symbolic shape in numbers.

    Args:
        shape: One axis name or number per dimension, or the name of an axis that holds the whole shape.
        ax: Axes of this rank.

    Raises:
        SizeError: a dimension is missing, negative or not a whole number.
    """
    if isinstance(shape, str):
        whole = ax[shape]
        dims: AxisValue = whole if isinstance(whole, tuple) else (whole,)
    else:
        # Without the words for each kind of error: layouts have thousands of shapes.
        entries = ax.entries
        dims = tuple([entries.get(dim) if isinstance(dim, str) else dim for dim in shape])
        if _is_shape(dims):
            return dims
        dims = tuple(ax.number(dim) if isinstance(dim, str) else dim for dim in shape)
    if not _is_shape(dims):
        raise SizeError(f"{ax.problem}: shape {shape!r} on rank {ax.r} gives {dims!r}; expected numbers >= 0")
    return dims
