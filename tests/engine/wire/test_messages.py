"""Messages as JSON and back: each kind as it was, and nothing else gets through."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import time
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.rankside import builder
from pkb_gym.engine.reference import orders as reference_orders
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire import forking, orders
from pkb_gym.engine.wire.claims import BlockClaims
from pkb_gym.engine.wire.messages import (
    MAX_DEPTH,
    MAX_NUMBER,
    MAX_WORD,
    ProtocolError,
    WireMessage,
    decode,
    read,
    to_json,
)
from tests.whole_tables import examples, sampled

MODULES = (orders, forking, builder, reference_orders)
KINDS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, WireMessage) and kind.__module__ == module.__name__
]
A_MOMENT_S = 5.0
"""Far more than any of it takes, on a machine that others use too."""


@functools.cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in dataclasses.fields(hint)})
    if origin in (Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return st.lists(values(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values(arguments[1]), max_size=3)
    if hint is object:
        return st.recursive(plain_values(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
    return {
        types.NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(-MAX_WORD, MAX_WORD),
        float: st.floats(-MAX_NUMBER, MAX_NUMBER),
        str: any_text(),
    }[hint]


def any_text() -> st.SearchStrategy[str]:
    """Lone surrogates included, which no encoding but JSON's escapes can carry."""
    return st.text(st.characters(), max_size=10)


def plain_values() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.none() | st.booleans() | numbers | any_text()


@functools.cache
def any_json() -> st.SearchStrategy[Any]:
    """Whatever `json.loads` makes, NaN and infinities included."""
    plain = plain_values() | st.floats()
    names = st.text(max_size=8) | st.sampled_from(["kind", "value", "slots", "partition", "shape", "dtype"])
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
    )


def sent(message: WireMessage) -> dict[str, Any]:
    """What arrives at the other end."""
    frame: dict[str, Any] = json.loads(json.dumps(message.to_json(), allow_nan=False))
    return frame


@pytest.mark.parametrize("kind", sampled(KINDS, 3), ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_every_kind_arrives_as_it_was(kind: type[WireMessage], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    received = read(sent(message), kind)
    assert received == message and type(received) is kind


def test_names_of_kinds_differ() -> None:
    """They travel by name alone."""
    names = [kind.__name__ for kind in KINDS]
    assert len(names) > 30 and len(set(names)) == len(names)


def test_kinds_of_equal_fields_are_distinguished_by_name() -> None:
    assert read(sent(orders.Bound()), orders.Armed, orders.Bound) == orders.Bound()
    with pytest.raises(ProtocolError, match=r"^'Bound' arrived where Armed or Loaded was due$"):
        read(sent(orders.Bound()), orders.Armed, orders.Loaded)


@dataclass(frozen=True)
class Left:
    number: int


@dataclass(frozen=True)
class Right:
    number: int | None
    more: tuple[Left | None, ...] = ()


@dataclass(frozen=True)
class Nested(WireMessage):
    """Unions in unions, as no message of ours has them yet."""

    one: Left | Right | None
    many: tuple[tuple[Left | Right, ...], ...]
    named: dict[str, Right | None]
    pair: tuple[int, str | None]
    ratio: float | None
    mode: Literal["a", "b"] | None
    flag: bool


NESTED = Nested(
    one=Right(None, (Left(1), None)),
    many=((Left(1), Right(2, ())), ()),
    named={"": None, "x": Right(3, (None,))},
    pair=(-1, None),
    ratio=2.0,
    mode="b",
    flag=False,
)


@settings(max_examples=examples(100))
@given(message=values(Nested))
def test_unions_may_be_nested(message: Nested) -> None:
    assert read(sent(message), Nested) == message


def changed(frame: Any, place: tuple[Any, ...], to: Any) -> Any:
    frame = copy.deepcopy(frame)
    inner = frame
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = to
    return frame


@pytest.mark.parametrize(
    ("place", "to", "says"),
    [
        (("one",), 3, "Nested.one: expected Left or Right or None, got 3"),
        (("one",), {"number": 1, "other": 2}, "Nested.one: expected Left or Right or None, got an object of 2"),
        (("one", "number"), "1", "Nested.one.number: expected int, got '1'"),
        (("one", "number"), 1.0, "Nested.one.number: expected int, got 1.0"),
        (("one", "number"), True, "Nested.one.number: expected int, got True"),
        (("one", "more", 0, "number"), [], "Nested.one.more.number: expected int, got a list of 0"),
        (("many",), {}, "Nested.many: expected tuple, got an object of 0"),
        (("many", 0), 7, "Nested.many: expected tuple, got 7"),
        (("many", 0, 0), None, "Nested.many: expected Left or Right, got None"),
        (("named",), [], "Nested.named: expected dict, got a list of 0"),
        (("named", "x"), 1, "Nested.named.x: expected Right or None, got 1"),
        (("pair",), [1], "Nested.pair: expected 2 entries, got 1"),
        (("pair",), [1, None, None], "Nested.pair: expected 2 entries, got 3"),
        (("pair", 0), None, "Nested.pair: expected int, got None"),
        (("pair", 1), 1, "Nested.pair: expected str, got 1"),
        (("ratio",), True, "Nested.ratio: expected float, got True"),
        (("ratio",), "nan", "Nested.ratio: expected float, got 'nan'"),
        (("ratio",), float("nan"), "Nested.ratio: expected float, got nan"),
        (("ratio",), float("-inf"), "Nested.ratio: expected float, got -inf"),
        (("ratio",), 1.5 * MAX_NUMBER, "Nested.ratio: expected float, got 15000"),
        (("ratio",), -(10**400), "Nested.ratio: expected float, got -1000"),
        (("pair", 0), MAX_WORD + 1, "Nested.pair: expected int, got 9223372036854775809"),
        (("pair", 0), 10**400, "Nested.pair: expected int, got 1000"),
        (("mode",), "c", "Nested.mode: expected 'a' or 'b', got 'c'"),
        (("mode",), ["a"], "Nested.mode: expected 'a' or 'b', got a list of 1"),
        (("flag",), 0, "Nested.flag: expected bool, got 0"),
        (("flag",), None, "Nested.flag: expected bool, got None"),
        (("extra",), 1, "Nested: expected one, many, named, pair, ratio, mode, flag alone, got 'extra' too"),
        (("message",), "Nest", "'Nest' arrived where Nested was due"),
        (("message",), None, "None arrived where Nested was due"),
        (("message",), {"Nested": 1}, "an object of 1 ('Nested') arrived where Nested was due"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_refused_and_named(place: tuple[Any, ...], to: Any, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(changed(sent(NESTED), place, to), Nested)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("largest", [(MAX_NUMBER, MAX_WORD), (-MAX_NUMBER, -MAX_WORD)], ids=["most", "least"])
def test_the_largest_numbers_pass(largest: tuple[float, int]) -> None:
    message = dataclasses.replace(NESTED, ratio=largest[0], pair=(largest[1], None))
    assert read(sent(message), Nested) == message


def test_whole_numbers_do_for_fractions() -> None:
    received = read(changed(sent(NESTED), ("ratio",), 2), Nested)
    assert type(received.ratio) is float and received == NESTED


@pytest.mark.parametrize("kind", sampled(KINDS, 3, 1), ids=lambda kind: kind.__name__)
@settings(max_examples=3)
@given(data=st.data())
def test_no_field_may_be_missing_and_none_be_added(kind: type[WireMessage], data: st.DataObject) -> None:
    frame = sent(data.draw(values(kind)))
    for name in [field.name for field in dataclasses.fields(kind)]:  # type: ignore[arg-type]
        less = {key: value for key, value in frame.items() if key != name}
        with pytest.raises(ProtocolError, match=rf"^{kind.__name__}: {name} missing in an object of {len(less) - 1}"):
            read(less, kind)
    with pytest.raises(ProtocolError, match=rf"^{kind.__name__}: expected .* alone, got 'and_more' too$"):
        read(frame | {"and_more": 1}, kind)


NONSENSE = [[{"no": None}]]
"""Fits no field."""


def places(hint: Any, data: Any, where: str) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Every place inside a message that has a type, and how an error names it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return
    yield (), where
    if origin in (Union, types.UnionType):
        for argument in arguments:
            inner: Any = argument
            if dataclasses.is_dataclass(inner) and isinstance(data, dict):
                if data.keys() == {field.name for field in dataclasses.fields(inner)}:
                    yield from places(argument, data, where)
            elif get_origin(inner) is tuple and isinstance(data, list):
                yield from places(argument, data, where)
    elif dataclasses.is_dataclass(hint):
        for name, of_field in typing.get_type_hints(hint).items():
            if name in data:  # constants of the class are not sent
                for place, named in places(of_field, data[name], f"{where}.{name}"):
                    yield (name, *place), named
    elif origin is tuple:
        for index, entry in enumerate(data):
            of_entry = arguments[0] if arguments[1:] == (Ellipsis,) else arguments[index]
            for place, named in places(of_entry, entry, where):
                yield (index, *place), named
    elif origin is dict:
        for key, entry in data.items():
            for place, named in places(arguments[1], entry, f"{where}.{key}"):
                yield (key, *place), named


@pytest.mark.parametrize("kind", sampled(KINDS, 3, 2), ids=lambda kind: kind.__name__)
@settings(max_examples=3)
@given(data=st.data())
def test_nonsense_at_any_place_is_refused_by_name(kind: type[WireMessage], data: st.DataObject) -> None:
    frame = sent(data.draw(values(kind)))
    for place, named in list(places(kind, frame, kind.__name__))[1:40]:
        with pytest.raises(ProtocolError) as caught:
            read(changed(frame, place, NONSENSE), kind)
        assert str(caught.value).startswith(f"{named}"), place


@pytest.mark.parametrize("kind", [*sampled(KINDS, 3), Nested], ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_any_json_is_a_message_or_a_protocol_error(kind: type[WireMessage], data: st.DataObject) -> None:
    """At random, and at random places of a message that is otherwise right."""
    frame = sent(data.draw(values(kind)))
    at = [place for place, _ in places(kind, frame, "")][1:]
    frames = [data.draw(any_json())]
    if at:
        frames.append(changed(frame, data.draw(st.sampled_from(at)), data.draw(any_json())))
    for each in frames:
        try:
            message = read(each if isinstance(each, dict) else {WireMessage.KEY: kind.__name__, "field": each}, kind)
        except ProtocolError as error:
            assert len(str(error)) < 1000
        else:
            assert type(message) is kind


@given(data=any_json())
def test_any_json_is_a_value_or_a_protocol_error(data: Any) -> None:
    for kind in (orders.Claim, orders.DeviceReport, WorkloadSpec, Right):
        try:
            assert to_json(decode(kind, data)) is not None
        except ProtocolError:
            pass


@pytest.mark.parametrize("name", ["message", "sets", "epoch", "link_bytes_per_s"])
def test_depth_is_a_protocol_error_like_any_other(name: str) -> None:
    """Lists a few levels short of what the JSON parser refuses were too deep for the error that should show them."""
    frame = json.dumps(sent(orders.ProfileBlock((0,), 1, None)) | {name: "HERE"})
    refused = 0
    for depth in (2, 10, 100, *range(800, 1010)):
        try:
            data = json.loads(frame.replace('"HERE"', "[" * depth + "]" * depth))
        except RecursionError:
            break
        with pytest.raises(ProtocolError):
            read(data, orders.ProfileBlock)
        refused += 1
    assert refused > 3


def test_values_that_can_be_anything_are_not_nested_without_end() -> None:
    nested: Any = 0
    for _ in range(MAX_DEPTH):
        nested = [nested]
    frame = {WireMessage.KEY: "Compared", "check": nested}
    assert isinstance(read(frame, reference_orders.Compared).check, tuple)
    with pytest.raises(ProtocolError, match=f"^Compared.check: nested more than {MAX_DEPTH} deep$"):
        read(frame | {"check": [nested]}, reference_orders.Compared)


MANY = 200_000


@pytest.mark.parametrize(
    "value",
    [
        "x" * MANY,
        "\ud800" * MANY,
        [1] * MANY,
        [None] * MANY,
        [[]] * MANY,
        [{"shape": [1], "dtype": "float32"}] * (MANY // 10) + [7],
        {str(number): number for number in range(MANY // 5)},
        [["\u202e" * MANY]],
        int("9" * 4000),
    ],
    ids=["text", "surrogates", "numbers", "nones", "lists", "claims", "object", "long name", "digits"],
)
def test_the_largest_frames_take_a_moment_and_few_words(value: Any) -> None:
    began = time.monotonic()
    refusals = []
    for content in ({"calls": value}, {"calls": [value]}, {"calls": [[value]]}, {"calls": [], "more": value}):
        try:
            assert isinstance(decode(BlockClaims, content), BlockClaims)
        except ProtocolError as error:
            refusals.append(str(error))
    assert time.monotonic() - began < A_MOMENT_S
    assert len(refusals) >= 3
    assert all(len(text) < 300 and text.isascii() for text in refusals)
