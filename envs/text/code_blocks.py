"""Fenced blocks of code in a model's Markdown.

The parser is CommonMark's, of markdown-it-py, with blocks, lists and quotes alone, and a few additions for what models
write: a fence that opens after words on its line or at any indentation, text after a closing fence, zero-width
characters before a fence, and code that is indented less than its list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock

_ZERO_WIDTH = re.compile(r"^[\ufeff\u200b-\u200f\u2060]++(?=[ \t]*+(?:```|~~~))", re.MULTILINE)
_OPENING = re.compile(r"(?P<fence>`{3,}+(?=[^`]*+$)|~{3,}+)")
_AFTER_WORDS = re.compile(r"[^`]*[^`\s][ \t]*(?P<fence>`{3,}+)(?P<info>[\w+#.-]*+)\s*+$")
_CLOSING = re.compile(r"(?P<fence>`{3,}+|~{3,}+)(?P<rest>.*)$", re.DOTALL)
_END_TOKEN = re.compile(r"(?:<\|[^|<>\n]{1,40}\|>|</s>|<end_of_turn>)\s*\Z")

LANGUAGES = frozenset(
    {"bash", "c", "c++", "cc", "cmake", "console", "cpp", "cu", "cuda", "cxx", "diff", "json", "make", "markdown", "md"}
    | {"ptx", "py", "python", "sh", "shell", "text", "triton", "txt"}
)
"""Words after a fence that opens a block rather than closes one."""

MAX_INDENT = 3
"""Indentation of a closing fence beyond its opening one, in columns; deeper ones stand in strings of the code."""
MAX_VISITS = 30
"""Lines that the searches for closing fences visit, by line of the text: a bound for texts made of open fences."""


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block.

    Attributes:
        code: Text between the fences.
        is_closed: Whether a fence ends it; false for the last block of a reply that was cut off.
    """

    code: str
    is_closed: bool


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    r"""The blocks of a text, in order; only the last may be open.

    Example:
        >>> code_blocks("1. Run: ```cpp\n    int a;\n    ``` Done.\n> ~~~\n> b")
        (CodeBlock(code='    int a;\n', is_closed=True), CodeBlock(code='b', is_closed=False))
    """
    text = _ZERO_WIDTH.sub("", text)
    lines = text.count("\n") + 1
    tokens = _parser().block.parse(text, _parser(), {"visits": MAX_VISITS * lines}, []) or []
    blocks = [CodeBlock(token.content, token.meta["is_closed"]) for token in tokens if token.type == "fence"]
    *earlier, last = blocks or [CodeBlock("", is_closed=True)]
    return (*(block for block in earlier if block.is_closed), last) if blocks else ()


def without_end_token(code: str) -> str:
    r"""The code without a token that ends replies, which some servers leave in the text.

    Example:
        >>> without_end_token("int a;\n<|im_end|>")
        'int a;\n'
    """
    return _END_TOKEN.sub("", code)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("zero").enable(["fence", "blockquote", "list"])
    parser.block.ruler.at("fence", _fence, {"alt": ["blockquote", "list"]})
    parser.block.ruler.at("paragraph", _line)
    return parser


def _line(state: StateBlock, start: int, _end: int, _silent: bool) -> bool:  # the protocol of rules
    """A rule that takes one line of text: paragraphs hold no blocks, so their extent does not matter."""
    state.line = start + 1
    return True


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The rule of fenced blocks, section 4.5 of CommonMark 0.31 with the additions of this module."""
    line = _text(state, start)
    begin, is_after_words = _OPENING.match(line), False
    if begin is None and "```" in line and (begin := _AFTER_WORDS.match(line)) is not None:
        is_after_words = True
        if not (begin["info"] or line[: begin.start("fence")].rstrip().endswith((":", ">"))):
            return False
    if begin is None:
        return False
    if silent:
        return True
    close = _closing_line(state, start, end, begin["fence"])
    if close is None and is_after_words:
        return False
    # Code may be indented less than its list, but an open block ends with the list.
    stop = close if close is not None else _end_of_item(state, start, end)
    state.line = stop + (close is not None)
    token = state.push("fence", "code", 0)
    token.content = state.getLines(start + 1, stop, 0, True)
    token.meta = {"is_closed": close is not None}
    return True


def _text(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def _closing_line(state: StateBlock, start: int, end: int, fence: str) -> int | None:
    """The line of the fence that closes a block; None where there is none."""
    visits: int = state.env["visits"]
    for line in range(start + 1, min(end, start + 1 + visits)):
        if state.sCount[line] > state.sCount[start] + MAX_INDENT:
            continue
        text = _text(state, line)
        if text.startswith(fence) and _is_closing(text, fence):
            state.env["visits"] = visits - (line - start)
            return line
    state.env["visits"] = max(0, visits - (end - start))
    return None


def _is_closing(text: str, fence: str) -> bool:
    found = _CLOSING.match(text)
    assert found is not None
    rest = found["rest"].strip()
    if not rest or rest.startswith("<"):
        return True
    first, *others = rest.split()
    is_info = first.lower() in LANGUAGES or first[0] in "{`" or "=" in rest
    return not is_info and (bool(others) or first[-1] in ".!:;,)") and found["fence"][0] == fence[0]


def _end_of_item(state: StateBlock, start: int, end: int) -> int:
    for line in range(start + 1, end):
        if state.sCount[line] < state.blkIndent and state.bMarks[line] + state.tShift[line] < state.eMarks[line]:
            return line
    return end
