"""Declarations of symmetric buffers, such as `x:bf16[1024],out:bf16[1024]`, and their contents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rank_emulator.errors import EmulatorError

Array = npt.NDArray[Any]


class UsageError(EmulatorError):
    """A program, a buffer or an option is not declared as it must be."""


@dataclass(frozen=True)
class ElementType:
    """A type of a buffer's elements.

    Attributes:
        name: Name in declarations.
        c_type: Type in CUDA C++.
        header: Header of the CUDA toolkit that defines `c_type`; None for built-in types.
        stored: Type of numpy with the same bytes; of bfloat16, which numpy lacks, the bits as an integer.
        shown: Type of numpy that a reference function gets.
    """

    name: str
    c_type: str
    header: str | None
    stored: type[np.generic]
    shown: type[np.generic]

    @property
    def nbytes(self) -> int:
        """Size of an element in bytes."""
        return np.dtype(self.stored).itemsize


TYPES: dict[str, ElementType] = {
    each.name: each
    for each in (
        ElementType("bf16", "__nv_bfloat16", "cuda_bf16.h", np.uint16, np.float32),
        ElementType("f16", "__half", "cuda_fp16.h", np.float16, np.float16),
        ElementType("f32", "float", None, np.float32, np.float32),
        ElementType("f64", "double", None, np.float64, np.float64),
        ElementType("i8", "signed char", None, np.int8, np.int8),
        ElementType("u8", "unsigned char", None, np.uint8, np.uint8),
        ElementType("i16", "short", None, np.int16, np.int16),
        ElementType("u16", "unsigned short", None, np.uint16, np.uint16),
        ElementType("i32", "int", None, np.int32, np.int32),
        ElementType("u32", "unsigned int", None, np.uint32, np.uint32),
        ElementType("i64", "long long", None, np.int64, np.int64),
        ElementType("u64", "unsigned long long", None, np.uint64, np.uint64),
    )
}
"""Types of elements by their names in declarations."""


WORLD_SIZE = -1
"""Extent of a shape that stands for the number of ranks."""


class Role(Enum):
    """What a buffer holds.

    An `INPUT` has new values at the beginning of each call, and an `OUTPUT` holds nothing then. `STATE`, such as flags
    and staging buffers, is filled once and survives calls.
    """

    INPUT, OUTPUT, STATE = "input", "output", "state"


@dataclass(frozen=True)
class Buffer:
    """Memory at the same offset of each rank's symmetric heap.

    Attributes:
        name: Name in call expressions and messages.
        type: Type of the elements.
        shape: Number of elements in each dimension, at least 1 each; `WORLD_SIZE` stands for the number of ranks.
        role: Content at the beginning of a call.
        fill: Value of each element of a `Role.STATE` at first; 0 for others.
    """

    name: str
    type: ElementType
    shape: tuple[int, ...]
    role: Role = Role.INPUT
    fill: float = 0.0

    def of_ranks(self, world_size: int) -> Buffer:
        """The buffer for a number of ranks, whose shape holds numbers alone."""
        return replace(self, shape=tuple(world_size if extent == WORLD_SIZE else extent for extent in self.shape))

    @property
    def nbytes(self) -> int:
        """Size in bytes, of a buffer that `of_ranks` has made."""
        return prod(self.shape) * self.type.nbytes


_DECLARATION = re.compile(
    r"(?P<name>[A-Za-z_]\w*):(?P<type>\w+)\[(?P<shape>(?:world_size|[\d\s,x*])+)\](?:=(?P<fill>[\w.+-]+))?", re.ASCII
)
_RESERVED = frozenset({"rank", "world_size", "stream", "call"})


def parse_buffers(text: str) -> tuple[Buffer, ...]:
    """The buffers of a declaration: `name:type[shape]` or `name:type[shape]=fill`, with commas between them.

    A fill is `random` (an input, the default), `none` (an output, the default of names that begin with `out`) or a
    number (state that survives calls, such as `flags:u32[64]=0`).

    Raises:
        UsageError: The text is no such declaration.
    """
    buffers: list[Buffer] = []
    rest = text.strip()
    while rest:
        found = _DECLARATION.match(rest)
        if found is None:
            raise UsageError(
                f"--args: cannot read {rest!r}; declare buffers as name:type[shape], for example "
                '"x:bf16[1024],out:bf16[1024],flags:u32[64]=0"'
            )
        buffers.append(declare(found["name"], found["type"], _shape(found["shape"]), found["fill"]))
        rest = rest[found.end() :].lstrip()
        if rest and not rest.startswith(","):
            raise UsageError(f"--args: expected a comma before {rest!r}")
        rest = rest[1:].lstrip()
    return distinct(buffers)


def declare(name: str, type_name: str, shape: Sequence[int | str], fill: str | float | None = None) -> Buffer:
    """A buffer of a declaration's parts; `fill` is "random", "none", a number, or None for the default of the name.

    Raises:
        UsageError: A part is not as it must be.
    """
    if type_name not in TYPES:
        raise UsageError(f"buffer {name}: no type {type_name!r}; the types are {', '.join(TYPES)}")
    if name in _RESERVED:
        raise UsageError(f"buffer {name}: the names {', '.join(sorted(_RESERVED))} have a meaning in call expressions")
    extents = tuple(WORLD_SIZE if extent == "world_size" else extent for extent in shape)
    if not extents or not all(isinstance(extent, int) and (extent == WORLD_SIZE or extent >= 1) for extent in extents):
        raise UsageError(f"buffer {name}: an extent is world_size or a number of at least 1, got {list(shape)}")
    if fill is None:
        fill = "none" if name.startswith("out") else "random"
    role = {"random": Role.INPUT, "none": Role.OUTPUT}.get(str(fill), Role.STATE)
    try:
        value = float(fill) if role is Role.STATE else 0.0
    except ValueError:
        raise UsageError(f"buffer {name}: the fill must be random, none or a number, got {fill!r}") from None
    return Buffer(name, TYPES[type_name], tuple(map(int, extents)), role, value)


def distinct(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """The buffers, if no two have one name.

    Raises:
        UsageError: Two have.
    """
    names = [buffer.name for buffer in buffers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"buffer {name} is declared twice")
    return tuple(buffers)


def random_content(buffer: Buffer, rank: int, call: int, seed: int) -> Array:
    """Values of an input, a function of the seed, the rank and the call.

    They are small integers in every type, so that sums are exact.

    Returns:
        An array of the buffer's shape and `ElementType.shown`.
    """
    draw = np.random.default_rng([seed, rank, call, *buffer.name.encode()])
    low = 0 if np.issubdtype(buffer.type.shown, np.unsignedinteger) else -8
    return draw.integers(low, 8, buffer.shape, endpoint=True).astype(buffer.type.shown)


def to_bytes(values: Array, buffer: Buffer) -> bytes:
    """The bytes of values in a buffer's type."""
    if buffer.type.name == "bf16":  # rounded to nearest, ties to even
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return np.ascontiguousarray(values).astype(buffer.type.stored).tobytes()


def from_bytes(content: bytes, buffer: Buffer) -> Array:
    """The values of a buffer's bytes."""
    stored = np.frombuffer(content, buffer.type.stored).reshape(buffer.shape)
    if buffer.type.name == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.copy()


def _shape(text: str) -> tuple[int | str, ...]:
    extents = (extent for extent in re.split(r"[\s,x*]+", text.strip()) if extent)
    return tuple(int(extent) if extent.isdecimal() else extent for extent in extents)
