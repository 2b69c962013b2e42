"""The tokens of a source, for comparing texts whatever their comments and white space."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens_of(source: str) -> list[str]:
    """The words, numbers and marks of a source, without the comments of C++ and white space.

    Example:
        >>> tokens_of("x += y[2];  // the sum")
        ['x', '+', '=', 'y', '[', '2', ']', ';']
    """
    return _TOKEN.findall(_COMMENT.sub(" ", source))
