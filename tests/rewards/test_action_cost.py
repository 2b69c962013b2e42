"""What a reply costs by its form is told in a time that grows with its length."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.rewards.action_cost import ActionFacts, fenced_blocks

PATTERN = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@given(st.lists(st.sampled_from(["```", "```cpp", "``` \t", "``", "x", "", "a```", "```a`b", "\n", "\r"]), max_size=12))
def test_blocks_are_those_of_markdown(lines: list[str]) -> None:
    reply = "\n".join(lines)
    assert fenced_blocks(reply) == PATTERN.findall(reply)


@pytest.mark.parametrize("text", ["```a\n" * 200_000, "```\n" * 250_000, "```a" + "\n" * 1_000_000, "`" * 1_000_000])
def test_no_reply_takes_long(text: str) -> None:
    """A pattern went through the rest of the reply from each block that is never closed."""
    began = time.monotonic()
    ActionFacts.of(text)
    assert time.monotonic() - began < 5
