"""Fenced blocks of Markdown."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.support import fences
from pkb_gym.engine.support.fences import FencedBlocks, fenced_blocks

PATTERN = re.compile(r"^ {0,3}```[^\n`]*\n(.*?)^ {0,3}```[ \t]*$", re.DOTALL | re.MULTILINE)
"""Of blocks between fences of three backticks."""


def test_the_example_holds() -> None:
    result = doctest.testmod(fences)
    assert result.attempted > 0 and result.failed == 0


@given(st.lists(st.sampled_from(["```", " ```cpp", "``` \t", "``", "x", "", "a```", "```a`b", "\n"]), max_size=12))
def test_fences_of_three_backticks(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert list(fenced_blocks(text).blocks) == PATTERN.findall(text)


@pytest.mark.parametrize(
    ("text", "blocks", "is_open"),
    [
        ("~~~\n```\n~~~", ("```\n",), False),
        ("````\n```\n````", ("```\n",), False),
        ("    ```\nindented code", (), False),
        ("```\n~~~", (), True),
        ("```a\r\nx\r\n```\r\n", ("x\r\n",), False),
    ],
)
def test_a_fence_ends_a_block_of_its_kind(text: str, blocks: tuple[str, ...], is_open: bool) -> None:
    assert fenced_blocks(text) == FencedBlocks(blocks, is_open)
