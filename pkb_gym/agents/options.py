"""Options of an agent: a record of its own, filled from texts such as `temperature=0.8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.suggestions import did_you_mean

Options = TypeVar("Options", bound=Record)


class NoOptions(Record):
    """The options of agents that have none."""


def parse_options(agent: str, kind: type[Options], given: Mapping[str, str]) -> Options:
    """The options of an agent.

    Args:
        agent: Name of the agent, for errors.
        kind: Class of the record of its options.
        given: Value by name, as text.

    Raises:
        ConfigError: An option is unknown, takes no such value, or is missing.

    Example:
        >>> parse_options("reference", NoOptions, {})
        NoOptions()
        >>> parse_options("reference", NoOptions, {"speed": "1"})
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: agent reference: no option 'speed'; it has none.
    """
    for name in given:
        if name not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            has = f"there are {known}" if known else "it has none"
            raise ConfigError(f"agent {agent}: no option {name!r}; {has}.{did_you_mean(name, kind.model_fields)}")
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        if wrong["type"] == "missing":
            raise ConfigError(f"agent {agent}: option {name} is missing; give --set {name}=...") from None
        about = " ".join((kind.model_fields[name].description or "").split())
        raise ConfigError(f"agent {agent}: {name}={given.get(name)!r}: {wrong['msg']}. {name}: {about}") from None
