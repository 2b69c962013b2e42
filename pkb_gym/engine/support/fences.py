"""Fenced blocks of Markdown (CommonMark 0.31, section 4.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")


@dataclass(frozen=True)
class FencedBlocks:
    """The blocks of a text.

    Attributes:
        blocks: content of those that end, in order.
        is_open: whether a last one does not end.
    """

    blocks: tuple[str, ...]
    is_open: bool


def fenced_blocks(text: str) -> FencedBlocks:
    r"""Finds the blocks of a text, in a time that grows with its length.

    A fence is closed by one of the same characters, at least as long and alone on its line.

    Example:
        >>> fenced_blocks("```cpp\nint x;\n```\n~~~\nnever closed")
        FencedBlocks(blocks=('int x;\n',), is_open=True)
    """
    blocks: list[str] = []
    fence, begin, place = "", 0, 0
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line.rstrip())
        if found and not fence:
            fence, begin = found[1], place + len(line)
        elif found and found[1].startswith(fence) and not found[2].strip():
            blocks.append(text[begin:place])
            fence = ""
        place += len(line)
    return FencedBlocks(tuple(blocks), bool(fence))
