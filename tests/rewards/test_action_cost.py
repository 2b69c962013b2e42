"""Fenced blocks of a reply: the same as one pattern finds, which took time by the square of the length."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from pkb_gym.rewards.action_cost import fenced_blocks

PATTERN = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
PIECES = st.sampled_from(
    ["```", "```cpp", "``` ", "```\t x", "`", "\n", "\n", "\r", " ", "x", "int x;\n", "````", "\u2028"]
)


@given(text=st.lists(PIECES, max_size=14).map("".join))
@example("```\n```\n```")
@example("```cpp\nint x;\n```")
@example("text ```\n```\nx\n``` \t")
def test_blocks_are_those_of_the_pattern(text: str) -> None:
    assert fenced_blocks(text) == PATTERN.findall(text)
