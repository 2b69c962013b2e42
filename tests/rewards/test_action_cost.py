"""The cost of a reply by its form takes a time that grows with its length."""

from __future__ import annotations

import time

import pytest

from pkb_gym.rewards.action_cost import ActionFacts


@pytest.mark.parametrize("text", ["```a\n" * 200_000, "```\n" * 250_000, "```a" + "\n" * 1_000_000, "`" * 1_000_000])
def test_no_reply_takes_long(text: str) -> None:
    """A pattern went through the rest of the reply from each block that is never closed."""
    began = time.monotonic()
    ActionFacts.of(text)
    assert time.monotonic() - began < 5
