"""Which sources are one and the same to a compiler: those that differ in comments and blanks alone."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from typing import TypeAlias

from pkb_gym.engine.records.source import Source

MAX_CHARS = 1 << 16
"""Longer sources are only equal to themselves: nothing takes a long text apart."""

Code: TypeAlias = "str | Sequence[tuple[int, str]]"

_NATIVE_PIECE = re.compile(
    r"""(?P<kept> R"(?P<delimiter>[^()\\\s]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z)   # a raw string
              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
      | (?P<comment> //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) )
      | (?P<blanks> \s+ )""",
    re.DOTALL | re.VERBOSE,
)
_PASSED_OVER = (tokenize.COMMENT, tokenize.NL)
_LAYOUT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_of(source: str) -> Code:
    r"""A source without comments, and with as few blanks as say the same; equal for sources that are the same code.

    What cannot be taken apart stands for itself.

    Example:
        >>> code_of("import a  # one\n") == code_of("import  a\n\n")
        True
        >>> code_of("import a\n") == code_of("import b\n")
        False
    """
    if len(source) > MAX_CHARS:
        return source
    is_native = Source.parse(source, "cuda").language == "cuda"
    return _native_code(source) if is_native else _python_code(source)


def _native_code(source: str) -> str:
    """One blank, or a line break if there is one among them, in place of blanks and comments that follow each other."""
    parts: list[str] = []
    end, gap = 0, ""
    for found in _NATIVE_PIECE.finditer(source):
        if between := source[end : found.start()]:
            parts += [gap, between]
            gap = ""
        if found["kept"] is not None:
            parts += [gap, found["kept"]]
            gap = ""
        else:
            gap = "\n" if "\n" in f"{gap}{found['blanks'] or ''}" else " "
        end = found.end()
    return "".join([*parts, gap, source[end:]]).strip()


def _python_code(source: str) -> Code:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    try:
        read = [token for token in tokens if token.type not in _PASSED_OVER]
    except (tokenize.TokenError, SyntaxError):
        return source
    return [(token.type, "" if token.type in _LAYOUT else token.string) for token in read]
