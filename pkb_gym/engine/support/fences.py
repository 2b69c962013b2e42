"""Fenced blocks of Markdown (CommonMark 0.31, section 4.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = r" {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)"
"""Pattern of a line that begins or ends a block."""
_FENCE = re.compile(FENCE)


@dataclass(frozen=True)
class FencedBlocks:
    """The blocks of a text.

    Attributes:
        blocks: Contents of the closed blocks, in order.
        is_open: Whether a last block is not closed.
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
        if (found := _FENCE.match(line.rstrip())) is not None:
            before, fence = fence, fence_after(fence, found)
            if not before:
                begin = place + len(line)
            elif not fence:
                blocks.append(text[begin:place])
        place += len(line)
    return FencedBlocks(tuple(blocks), bool(fence))


def fence_after(fence: str, line: re.Match[str]) -> str:
    """The fence of the block that is open after a line with one; empty where none is.

    Args:
        fence: Fence of the block that is open before the line; empty for none.
        line: Match of `FENCE`.
    """
    if not fence:
        return line["fence"]
    return "" if line["fence"].startswith(fence) and not line["info"].strip() else fence
