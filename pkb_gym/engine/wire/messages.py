"""Dataclasses as JSON and back: the messages between the evaluator, zygotes, leaders and rank programs.

A message is a frozen dataclass whose fields hold numbers, texts, None, tuples, dicts by text, and further dataclasses.
`decode` checks every type, since one of the two sides may run candidate code.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, TypeAlias, TypeVar, Union, get_args, get_origin

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"

MAX_NUMBER = 1e15
"""The largest number in a message: bytes, nanoseconds, microseconds and counts of one evaluation stay below."""

MAX_WORD = 1 << 63
"""The largest whole number: moments of a monotonic clock, seeds and contents of words may use them all."""


MAX_DEPTH = 32
"""The deepest nesting of values of fields that can hold anything."""


class WireError(Exception):
    """Raised when the other side closed the connection or broke the protocol."""


class ProtocolError(WireError):
    """Raised when the other side sent what is no frame, or not what was due."""


Value = TypeVar("Value")
Kind = TypeVar("Kind", bound="WireMessage")


class WireMessage:
    """Base of the messages that travel as a frame of their own, identified by their class name."""

    KEY: ClassVar[str] = "message"

    def to_json(self) -> dict[str, Json]:
        """The form that `read` reads."""
        return {WireMessage.KEY: type(self).__name__, **_fields_to_json(self)}


def read(frame: Mapping[str, object], *kinds: type[Kind]) -> Kind:
    """The message of a frame.

    Args:
        frame: JSON that `WireMessage.to_json` made, or whatever else has arrived.
        *kinds: Kinds of message that it may be.

    Raises:
        ProtocolError: it is none of them, or holds something else than it should.
    """
    content = dict(frame)
    name = content.pop(WireMessage.KEY, None)
    for kind in kinds:
        if kind.__name__ == name:
            return decode(kind, content)
    expected = " or ".join(kind.__name__ for kind in kinds)
    raise ProtocolError(f"{_shown(name)} arrived where {expected} was due")


def to_json(value: object) -> Json:
    """The JSON of a dataclass, or of anything that a field may hold."""
    if type(value) in _PLAIN:  # most are
        return value  # type: ignore[return-value]
    if dataclasses.is_dataclass(value):
        return _fields_to_json(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    return value  # type: ignore[return-value]  # a number, text or None; json.dumps refuses anything else


def _fields_to_json(value: object) -> dict[str, Json]:
    kind: Any = type(value)
    return {name: to_json(getattr(value, name)) for name in _hints(kind)}


def decode(kind: type[Value], data: object) -> Value:
    """The value of a type, from its JSON.

    Args:
        kind: A dataclass.
        data: Decoded JSON of the message, of any type.

    Raises:
        ProtocolError: it is something else; the error names the field.
    """
    value: Value = _decode(kind, data, kind.__name__)
    return value


def _decode(hint: Any, data: Any, where: str) -> Any:
    if hint in _PLAIN and _is_plain(hint, data):  # most are
        return float(data) if hint is float else data
    origin, arguments = _parts(hint)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, data, where)
    if origin is typing.Literal:
        if data in arguments:
            return data
    elif origin in (tuple, list):
        if isinstance(data, list):
            return _decode_tuple(arguments, data, where)
    elif origin is dict:
        if isinstance(data, dict):
            return {key: _decode(arguments[1], entry, f"{where}.{key}"[:80]) for key, entry in data.items()}
    elif hint is object:
        return _frozen(data, where)
    raise ProtocolError(f"{where}: expected {_name(hint)}, got {_shown(data)}")


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(data, dict):
        raise ProtocolError(f"{where}: expected an object, got {_shown(data)}")
    if missing := [name for name in hints if name not in data]:
        raise ProtocolError(f"{where}: {', '.join(missing)} missing in {_shown(data)}")
    for key in data:
        if key not in hints:
            raise ProtocolError(f"{where}: expected {', '.join(hints)} alone, got {ascii(key)[:40]} too")
    return kind(**{name: _decode(hint, data[name], f"{where}.{name}") for name, hint in hints.items()})


def _decode_union(kinds: Sequence[Any], data: Any, where: str) -> Any:
    """None, a plain value, or the dataclass that has these fields."""
    for kind in kinds:
        if kind is types.NoneType:
            if data is None:
                return None
        elif dataclasses.is_dataclass(kind):
            fields: Any = kind
            if isinstance(data, dict) and data.keys() == _hints(fields).keys():
                return _decode(kind, data, where)
        elif len(kinds) == 2 and types.NoneType in kinds and data is not None:
            return _decode(kind, data, where)
        elif _is_plain(kind, data):
            return data
    raise ProtocolError(f"{where}: expected {' or '.join(map(_name, kinds))}, got {_shown(data)}")


def _decode_tuple(arguments: tuple[Any, ...], data: list[Any], where: str) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_decode(arguments[0], entry, where) for entry in data)
    if len(data) != len(arguments):
        raise ProtocolError(f"{where}: expected {len(arguments)} entries, got {len(data)}")
    return tuple(_decode(hint, entry, where) for hint, entry in zip(arguments, data, strict=True))


def _is_plain(hint: Any, data: object) -> bool:
    if hint is bool:
        return isinstance(data, bool)
    if hint is int:
        return isinstance(data, int) and not isinstance(data, bool) and abs(data) <= MAX_WORD
    if hint is float:  # NaN fails both comparisons
        return isinstance(data, int | float) and not isinstance(data, bool) and -MAX_NUMBER <= data <= MAX_NUMBER
    return hint is str and isinstance(data, str)


def _frozen(data: Any, where: str, depth: int = 0) -> Any:
    """JSON has lists where fields have tuples."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"{where}: nested more than {MAX_DEPTH} deep")
    if isinstance(data, list):
        return tuple(_frozen(entry, where, depth + 1) for entry in data)
    if isinstance(data, dict):
        return {key: _frozen(entry, where, depth + 1) for key, entry in data.items()}
    return data


def _name(hint: Any) -> str:
    if get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint is types.NoneType:
        return "None"
    return getattr(hint, "__name__", str(hint))


def _shown(data: object) -> str:
    """A value in a few words; of a nested one no more than its outside, as its text may be long or too deep to make."""
    if isinstance(data, Mapping):
        keys = ", ".join(ascii(key)[:20] for key in itertools.islice(data, 4))
        return f"an object of {len(data)}" + (f" ({keys})" if keys else "")
    if isinstance(data, list | tuple):
        return f"a list of {len(data)}"
    return ascii(data)[:60]


_PLAIN = frozenset({bool, int, float, str, types.NoneType})


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A generic type's origin and arguments; nothing of one that has none."""
    return get_origin(hint), get_args(hint)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Field name -> type, of what is sent; constants of the class are not."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
