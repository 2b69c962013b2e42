"""Makes an `EvalConfig` of untrusted arguments; an error describes all faults in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Literal, get_args, get_origin

from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig, Sanitizer
from pkb_gym.engine.support.suggestions import did_you_mean

EXPECTED = {
    "world_size": "a whole number of ranks, at least 1",
    "ranks_per_gpu": "a whole number of ranks, at least 1",
    "size": "the name of a size, or axes by name such as {'M': 1024}: numbers, texts, None and tuples of them",
    "dtype": "the name of a dtype, such as 'bfloat16'",
    "trials": "a whole number, at least 1",
    "seed": "a whole number above -2**63 and below 2**63",
    "turn": "a whole number, at least 0 and below 2**63",
    "timeout_s": "a number of seconds above 0",
    "compile_timeout_s": "a number of seconds above 0",
    "timing_budget_s": "a number of seconds above 0",
    "memory_bytes": "a whole number of bytes above 0 and below 2**63",
    "trace": "True or False",
    "debug": "True or False",
    "sanitize": f"any of {', '.join(map(repr, get_args(Sanitizer)))}, in a tuple",
}
"""Field of `EvalConfig` -> what it takes, of those that take no choice of words."""

SYNONYMS = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "cu": "cuda",
    "c++": "cpp",
    "cxx": "cpp",
    "cc": "cpp",
    "py": "python",
    "torch": "python",
    "pytorch": "python",
    "emulator": "emulated",
}
"""Words that are often meant, and look like another choice or like none."""


def checked_config(choices: Mapping[str, object]) -> EvalConfig:
    """The configuration of these fields; the others have their defaults.

    Raises:
        ConfigError: a field does not exist or takes no such value; the message names field, value and choices.

    Example:
        >>> checked_config({"world_size": 2}).world_size
        2
        >>> checked_config({"protocol": "fast"})
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: protocol='fast': expected 'robust' or 'published'.
    """
    try:
        return EvalConfig.model_validate(dict(choices))
    except ValidationError as error:
        wrong = dict.fromkeys(str(each["loc"][0]) for each in error.errors())
        raise ConfigError("; ".join(_complaint(name, choices[name]) for name in wrong)) from None


def _complaint(name: str, value: object) -> str:
    if name not in EvalConfig.model_fields:
        return f"no choice {name!r}.{did_you_mean(name, EvalConfig.model_fields)}"
    words = choices_of(name)
    hint = did_you_mean(value, words, SYNONYMS)
    return f"{name}={reprlib.repr(value)}: expected {_listed(words) if words else EXPECTED[name]}.{hint}"


def choices_of(field: str) -> tuple[str, ...]:
    """The words that a field of `EvalConfig` takes; none where it takes anything else."""
    annotation = EvalConfig.model_fields[field].annotation
    kinds = (annotation, *get_args(annotation))
    for kind in kinds:
        if get_origin(kind) is Literal:
            return get_args(kind)
    return ()


def _listed(words: tuple[str, ...]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}"
