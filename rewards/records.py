"""Rewards as JSON, so that what a run was paid by is recorded exactly and can be built again.

    {"schema_version": 3, "reward": {"component": "Scale", "factor": 0.3, "value": {"component": "Correctness"}}}

Each object is its class by name and all its fields, defaults too: a default that changes later changes no record. Known
are all that derive from `Recorded`. YAML readers take a record too, as JSON is a part of YAML.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from math import isfinite
from typing import Literal, TypeAlias, get_args, get_origin, get_type_hints

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.reward import Reward

SCHEMA_VERSION = 3
"""3: `Ladder` counts earned outputs. 2: rewards name their baseline; those of version 1 took the eager one."""

PLAIN = {float: "a finite number", int: "a whole number", str: "a text", bool: "true or false"}
"""Name of a field's type in errors."""

MAX_CHARS, MAX_DEPTH, MAX_SHOWN_CHARS = 1 << 18, 64, 80
"""Limits: length of a record, objects within each other, length of a wrong value in an error."""

TOO_DEEP = f"a reward's record is nested too deeply: at most {MAX_DEPTH} objects within each other"

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"


def to_json(reward: Reward) -> str:
    """The record of a reward, on one line.

    Raises:
        ConfigError: The reward, or a part of it, is no `Recorded`: a plain function has no record.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> to_json(0.3 * Correctness())
        '{"schema_version": 3, "reward": {"component": "Scale", "factor": 0.3, "value": {"component": "Correctness"}}}'
    """
    return json.dumps({"schema_version": SCHEMA_VERSION, "reward": _plain(reward)}, allow_nan=False)


def from_json(text: str) -> Reward:
    """The reward of a record.

    Raises:
        ConfigError: The text is no such record; the message names the field and the nearest known name.

    Example:
        >>> from_json('{"schema_version": 3, "reward": {"component": "FastP", "p": 1.5}}')
        FastP(p=1.5, estimate='point', baseline='eager')
        >>> from_json('{"schema_version": 3, "reward": {"component": "FastP", "q": 1.5}}')
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: reward: FastP has no field 'q'; it has 'baseline', 'estimate', 'p'
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"a reward's record has at most {MAX_CHARS} characters, got {len(text)}")
    try:
        document: Json = json.loads(text)
    except ValueError as error:  # of numbers with thousands of digits too
        raise ConfigError(f"a reward's record must be JSON: {error}") from None
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None
    if not isinstance(document, dict) or document.keys() != {"schema_version", "reward"}:
        raise ConfigError('a reward\'s record is {"schema_version": 3, "reward": {"component": ...}}')
    if document["schema_version"] != SCHEMA_VERSION:
        raise ConfigError(f"schema_version: expected {SCHEMA_VERSION}, got {_shown(document['schema_version'])}")
    return _build(document["reward"], Recorded, "reward", 1)


def _plain(value: object) -> Json:
    if isinstance(value, Recorded):
        own: dict[str, Json] = {"component": type(value).__name__}
        return own | {field.name: _plain(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{value!r} cannot be recorded: only rewards that derive from Recorded can")


def _build(record: Json, wanted: type, where: str, depth: int) -> Recorded:
    """The object of a record, which must be of the wanted kind; the outermost has depth 1."""
    if depth > MAX_DEPTH:
        raise ConfigError(TOO_DEEP)
    if not isinstance(record, dict) or not isinstance(record.get("component"), str):
        raise ConfigError(f'{where}: expected {{"component": name, ...}}, got {_shown(record)}')
    name = str(record["component"])
    if name not in Recorded.registry:
        raise ConfigError(f"{where}: no component {_quoted(name)}{_alternatives(name, Recorded.registry)}")
    kind = Recorded.registry[name]
    declared = {field.name: field for field in _fields(kind)}
    given = {key: value for key, value in record.items() if key != "component"}
    if (unknown := next((key for key in given if key not in declared), None)) is not None:
        raise ConfigError(
            f"{where}: {name} has no field {_quoted(unknown)}{_alternatives(unknown, declared, 'it has')}"
        )
    for key, field in declared.items():
        if key not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: {name} needs field {key!r}")
    hints = get_type_hints(kind)
    values = {key: _read(value, hints[key], f"{where}.{key}", depth) for key, value in given.items()}
    if not issubclass(kind, wanted):
        raise ConfigError(f"{where}: {name} is no {wanted.__name__}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {name}: {error}") from None


def _read(value: Json, hint: object, where: str, depth: int) -> object:
    """A field's value as its class expects it; its object has that depth."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected a list, got {_shown(value)}")
        return tuple(_read(one, get_args(hint)[0], f"{where}[{index}]", depth) for index, one in enumerate(value))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where}: expected one of {_listed(get_args(hint))}, got {_shown(value)}")
        return value
    if isinstance(hint, type) and hint in PLAIN:
        return _read_plain(value, hint, where)
    kind = hint if isinstance(hint, type) and issubclass(hint, Recorded) else Recorded
    return _build(value, kind, where, depth + 1)


def _read_plain(value: Json, hint: type, where: str) -> Json:
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        value = float(value)
    if type(value) is not hint or (isinstance(value, float) and not isfinite(value)):
        raise ConfigError(f"{where}: expected {PLAIN[hint]}, got {_shown(value)}")
    return value


def _shown(value: Json) -> str:
    """A value as it stands in the record, or the beginning of it."""
    try:
        return _cut(json.dumps(value))
    except RecursionError:
        return "something nested deeply"


def _quoted(name: str) -> str:
    return _cut(repr(name))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} ..."


def _fields(kind: type[Recorded]) -> tuple[Field[object], ...]:
    try:
        return fields(kind)  # type: ignore[arg-type]  # all but mistakes are dataclasses, as the next lines ensure
    except TypeError:
        raise ConfigError(f"{kind.__name__} cannot be recorded: it must be a dataclass") from None


def _alternatives(wanted: str, names: Mapping[str, object], there_are: str = "there are") -> str:
    if hint := did_you_mean(wanted, names):
        return f".{hint} {there_are.capitalize()} {_listed(sorted(names))}"
    return f"; {there_are} {_listed(sorted(names)) or 'none'}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names)
