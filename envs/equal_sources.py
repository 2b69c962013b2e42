"""Equality of sources to a compiler: differences in comments and blanks do not count."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from typing import TypeAlias

from pkb_gym.engine.records.source import Source

MAX_CHARS = 1 << 16
"""Longer sources are only equal to themselves: nothing takes a long text apart."""

Code: TypeAlias = "str | Sequence[str] | Sequence[tuple[int, str]]"

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_SPLICED = "\0"
"""Stands for a line break that a backslash takes away, until it is known whether a raw string holds it."""

_RAW = r'(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z)'
_QUOTED = r'"(?:\\.|[^"\\\n])*+"?' + r"|'(?:\\.|[^'\\\n])*+'?"
"""Possessive, and without an end too: or each of many quotes that nothing ends would be followed through the line."""
_NUMBER = r"\.?\d(?:[eEpP][+-]|'\w|[\w.\0])*+"
_WORD = r"[^\W\d][\w\0]*+"

_PIECE = re.compile(rf"(?P<raw>{_RAW})|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|{_QUOTED}|{_NUMBER}|{_WORD}|.", re.DOTALL)
_TOKEN = re.compile(
    rf"""(?P<directive> ^[ \t\f\v]*\#) | (?P<line>\n) | (?P<blanks>[^\S\n]+)
    | {_QUOTED} | {_NUMBER} | {_WORD}
    | <<=? | <=>? | >= | ->\*? | \+\+ | -- | && | \|\| | :: | \#\# | \.\.\. | \.\* | [-+*/%&|^=!]= | .""",
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)
"""`>>` is two of its tokens, as at the end of templates."""

_PASSED_OVER = (tokenize.COMMENT, tokenize.NL)
_LAYOUT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_of(source: str) -> Code:
    r"""A source as its tokens; equal for sources that are the same code.

    What cannot be taken apart stands for itself.

    Example:
        >>> code_of("import a  # one\n") == code_of("import  a\n\n")
        True
        >>> code_of("#include <a>\nint b=1;") == code_of("#include<a>\nint b = // one\n  1;\n")
        True
        >>> code_of("import a\n") == code_of("import b\n")
        False
    """
    if len(source) > MAX_CHARS or _SPLICED in source:
        return source
    is_native = Source.parse(source, "cuda").language == "cuda"
    return _native_code(source) if is_native else _python_code(source)


def _native_code(source: str) -> Sequence[str]:
    """Tokens of the preprocessor; a line break only where it ends a directive."""
    text, raw_strings = _spliced(source)
    tokens: list[str] = []
    in_directive = is_behind_name = False
    for found in _TOKEN.finditer(text):
        token = found[0]
        if found["line"] is not None:
            tokens += ["\n"] if in_directive else []
            in_directive = False
        elif found["directive"] is not None:
            tokens.append("#")
            in_directive = True
        elif found["blanks"] is None:
            # Right behind its name, the bracket of a macro begins its parameters.
            begins_parameters = token == "(" and is_behind_name and tokens[-3:-1] == ["#", "define"]
            tokens.append("name(" if begins_parameters else token)
        is_behind_name = token[:1].isidentifier()
    return [*tokens, *raw_strings]


def _spliced(source: str) -> tuple[str, Sequence[str]]:
    """A source of one line where lines are spliced, without comments; and its raw strings, with a mark for each."""
    text: list[str] = []
    raw_strings: list[str] = []
    for found in _PIECE.finditer(_SPLICE.sub(_SPLICED, source)):
        if found["raw"] is not None:
            raw_strings.append(found[0])
            text.append(f'"{_SPLICED}"')
        else:
            text.append(" " if found["comment"] is not None else found[0].replace(_SPLICED, ""))
    return "".join(text), raw_strings


def _python_code(source: str) -> Code:
    read: list[tuple[int, str]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.ERRORTOKEN:  # of many, each would be looked for through the rest of its line
                return source
            if token.type not in _PASSED_OVER:
                read.append((token.type, "" if token.type in _LAYOUT else token.string))
    except (tokenize.TokenError, SyntaxError):
        return source
    return read
