"""Sources as runs of coloured text, so that a page can show them without markup of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pygments.lexer import Lexer

Kind: TypeAlias = Literal["plain", "keyword", "string", "comment", "number", "name", "preprocessor", "type"]
KINDS: tuple[Kind, ...] = ("plain", "keyword", "string", "comment", "number", "name", "preprocessor", "type")

MOST_CHARS = 200_000
"""Longer sources stay plain."""


@lru_cache(maxsize=4096)
def highlighted(text: str, language: str) -> tuple[int, ...]:
    """Runs of one colour: number of the kind in `KINDS`, length in UTF-16 units as browsers count, and so on.

    Args:
        text: of a source.
        language: "python" and "triton" are Python, all others C++.

    Returns:
        Lengths add up to that of the text.
    """
    if len(text) > MOST_CHARS:
        return (0, _units(text))
    runs: list[int] = []
    for kind, value in _tokens(text, language):
        if runs and (runs[-2] == kind or not value.strip()):
            runs[-1] += _units(value)
        elif value:
            runs += [kind, _units(value)]
    return tuple(runs)


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _tokens(text: str, language: str) -> list[tuple[int, str]]:
    from pygments.token import Comment, Keyword, Name, Number, String

    order = (
        (Comment.Preproc, KINDS.index("preprocessor")),
        (Comment.PreprocFile, KINDS.index("preprocessor")),
        (Keyword.Type, KINDS.index("type")),
        (Comment, KINDS.index("comment")),
        (Keyword, KINDS.index("keyword")),
        (String, KINDS.index("string")),
        (Number, KINDS.index("number")),
        (Name.Function, KINDS.index("name")),
        (Name.Class, KINDS.index("name")),
    )
    kinds: dict[object, int] = {}
    found = []
    for _, token, value in _lexer(language).get_tokens_unprocessed(text):
        if token not in kinds:
            kinds[token] = next((kind for parent, kind in order if token in parent), 0)
        found.append((kinds[token], value))
    return found


@lru_cache(maxsize=2)
def _lexer(language: str) -> Lexer:
    from pygments.lexers.c_cpp import CppLexer
    from pygments.lexers.python import PythonLexer

    return PythonLexer() if language in ("python", "triton") else CppLexer()
