"""Python sources without what does not decide what they do: comments and docstrings."""

from __future__ import annotations

import ast
import functools
import io
import tokenize

from pkb_gym.engine.support.syntax_tree import parse

KEPT = 512
"""Results that are kept: an evaluation asks for those of its problem, and parsing takes milliseconds."""


@functools.lru_cache(maxsize=KEPT)
def without_remarks(source: str) -> str:
    r"""A source without comments, docstrings, empty lines and blanks at the ends of lines.

    The text itself is cut, so that the result is the same under every version of Python that reads it.

    Raises:
        SyntaxError: It is no Python.

    Example:
        >>> without_remarks("x = 1  # one\n\ny = 2\n")
        'x = 1\ny = 2'
    """
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # positions of syntax trees are in bytes
    for first, begin, last, end in sorted(_spans(source), reverse=True):
        lines[first : last + 1] = [lines[first][:begin] + lines[last][end:]]
    stripped = (line.rstrip() for line in b"".join(lines).decode().splitlines())
    return "\n".join(line for line in stripped if line)


def _spans(source: str) -> list[tuple[int, int, int, int]]:
    """First line, first byte in it, last line, and the byte after the last of each remark; lines from 0."""
    found = [
        (first.lineno - 1, first.col_offset, (first.end_lineno or 0) - 1, first.end_col_offset or 0)
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for first in node.body[:1]
    ]
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            begin = len(lines[line - 1][:column].encode())
            found.append((line - 1, begin, line - 1, begin + len(token.string.encode())))
    return found
