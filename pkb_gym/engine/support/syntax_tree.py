"""Syntax trees of Python sources, in any thread."""

from __future__ import annotations

import ast
import threading
import warnings

_PARSING = threading.Lock()


def parse(source: str) -> ast.Module:
    """The syntax tree, without the warnings that a text may have on each of its lines.

    One at a time: CPython 3.11 counts the depth of all threads' trees together, and raises SystemError where two are
    made at once. Filters of warnings are those of all threads, too.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is no Python, or nested too deeply.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
