"""Named quantities of a problem, and the shapes made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pkb_gym.engine.errors import SizeError

AxisValue: TypeAlias = "int | float | bool | str | None | tuple[AxisValue, ...]"
"""Numbers, modes, and (nested) tuples of them: ragged sizes, groups of ranks, lists of shapes."""

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
    """One rank's quantities, read as attributes (`ax.M`) or as a mapping (`ax["M"]`).

    Attributes:
        entries: name -> value; always holds ``W`` (world size) and ``r`` (this rank).
        dtype: the problem's floating dtype in this evaluation, for example ``"bfloat16"``.
    """

    entries: Mapping[str, AxisValue]
    dtype: str = "float32"
    problem: str = field(default="", compare=False)

    def __getitem__(self, name: str) -> AxisValue:
        if name not in self.entries:
            raise SizeError(f"{self.problem}: no axis {name!r}; there are {', '.join(sorted(self.entries))}")
        return self.entries[name]

    def __getattr__(self, name: str) -> int:
        # Typed as int because nearly every axis is one; `ax[name]` gives the exact type for the others.
        if name.startswith("__") or "entries" not in self.__dict__:
            raise AttributeError(name)
        try:
            return self[name]  # type: ignore[return-value]  # see the comment above
        except SizeError as error:
            raise AttributeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the problem's floating dtype."""
        return ITEMSIZE[self.dtype]

    def number(self, name: str) -> int:
        """The axis as an int.

        Raises:
            SizeError: it is missing or not a whole number.
        """
        value = self[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise SizeError(f"{self.problem}: axis {name} must be a whole number, got {value!r}")
        return value


def frozen_axes(axes: Mapping[str, object]) -> dict[str, AxisValue]:
    """Axes that came as JSON, which has lists where axes have tuples."""
    return {name: _frozen(value) for name, value in axes.items()}


def _frozen(value: object) -> AxisValue:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    assert value is None or isinstance(value, int | float | bool | str), value
    return value


def divide(axes: Mapping[str, AxisValue], name: str, by: str) -> int:
    """axes[name] / axes[by], which must leave no remainder.

    Raises:
        SizeError: it does; the message names the two nearest values that would not.
    """
    value, divisor = axes[name], axes[by]
    assert isinstance(value, int) and isinstance(divisor, int)
    if value % divisor:
        low = value // divisor * divisor
        raise SizeError(f"axis {name}={value} must be a multiple of {by}={divisor}; nearest {low} and {low + divisor}")
    return value // divisor


def rank_axis(axes: Mapping[str, AxisValue], name: str, shift: int = 0) -> int:
    """The rank that an axis names, `shift` ranks on around the ring; negative values count from the last rank.

    Raises:
        SizeError: there is no such rank.
    """
    value, world_size = axes[name], axes["W"]
    assert isinstance(value, int) and isinstance(world_size, int)
    if not -world_size <= value < world_size:
        raise SizeError(f"axis {name}={value} must name a rank, {-world_size} .. {world_size - 1}")
    return (value + shift) % world_size


def resolve_dtype(dtype: str | None, ax: Axes) -> str:
    """A declared dtype's name.

    Args:
        dtype: a dtype; the name of an axis that holds one, or None; None is the problem's floating dtype.
        ax: this rank's axes.

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
        shape: one axis name or number per dimension, or one name of an axis that holds the whole shape.
        ax: this rank's axes.

    Raises:
        SizeError: a dimension is missing, negative or not a whole number.
    """
    if isinstance(shape, str):
        whole = ax[shape]
        dims: tuple[AxisValue, ...] = whole if isinstance(whole, tuple) else (whole,)
    else:
        dims = tuple(ax.number(dim) if isinstance(dim, str) else dim for dim in shape)
    for dim in dims:
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
            raise SizeError(f"{ax.problem}: shape {shape!r} on rank {ax.r} gives {dims!r}; expected numbers >= 0")
    return tuple(int(dim) for dim in dims)  # type: ignore[arg-type]  # checked one by one above
