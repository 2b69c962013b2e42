"""JSON for committed files: a record of a list has one line, so that a diff shows which records differ."""

from __future__ import annotations

import json
from collections.abc import Mapping

WIDTH = 120
"""Characters of a line, beyond which an object that is no record of a list is indented."""


def row_json(content: Mapping[str, object]) -> str:
    r"""Indented JSON whose lists of records have one record a line; it ends with a newline.

    Args:
        content: Values that JSON can hold, all numbers finite.

    Raises:
        ValueError: A number is NaN or infinite.

    Example:
        >>> print(row_json({"commit": "6e15948f", "rows": [{"ranks": 2, "us": 6.5}, {"ranks": 4, "us": 9}]}), end="")
        {
         "commit": "6e15948f",
         "rows": [
          {"ranks": 2, "us": 6.5},
          {"ranks": 4, "us": 9}
         ]
        }
    """
    return _object(content, 0) + "\n"


def _object(content: Mapping[str, object], depth: int) -> str:
    parts = [f"{json.dumps(key)}: {_value(value, depth + 1)}" for key, value in content.items()]
    return _block("{", parts, "}", depth)


def _value(value: object, depth: int) -> str:
    line = json.dumps(value, allow_nan=False)
    if isinstance(value, list | tuple) and value and all(isinstance(each, dict) for each in value):
        return _block("[", [json.dumps(each) for each in value], "]", depth)
    if isinstance(value, dict) and len(line) > WIDTH - depth:
        return _object(value, depth)
    return line


def _block(begin: str, parts: list[str], end: str, depth: int) -> str:
    indent = " " * (depth + 1)
    return f"{begin}\n{indent}" + f",\n{indent}".join(parts) + f"\n{' ' * depth}{end}"
