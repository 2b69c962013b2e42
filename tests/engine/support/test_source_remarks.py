"""Sources without comments and docstrings."""

from __future__ import annotations

import ast

import pytest

from pkb_gym.engine.support.source_remarks import without_remarks

PLAIN = """\
import math
class Solver:
    size = 2
    def solve(self, text="# no comment"):
        shown = '''of two
lines'''
        return f"{text}#{shown}", (
            math.pi,
        )
async def empty():
    return None"""

REMARKED = '''\
"""Solves it. Größe: 2.

Several lines.
"""

import math  # of the standard library


class Solver:
    "Solves."
    size = 2  # äöü # twice

    def solve(self, text="# no comment"):
        # Before a statement.
        """Returns it."""  # Behind it.
        shown = \'\'\'of two
lines\'\'\'
        return f"{text}#{shown}", (  # in brackets
            # a line of its own
            math.pi,
        )
async def empty():
    """Nothing."""
    return None
'''


def test_only_what_decides_is_left() -> None:
    assert without_remarks(PLAIN) == PLAIN
    assert without_remarks(REMARKED) == PLAIN


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1 # one", "x = 1"),
        ("x = 'ä' # ö\ny = 2", "x = 'ä'\ny = 2"),
        ("def f():\n    'one'\n    'two'\n", "def f():\n    'two'"),
        ("'''a\nb'''\n\nx = 1\n", "x = 1"),
        ("x = 1\n'not a docstring'\n", "x = 1\n'not a docstring'"),
        ("", ""),
    ],
)
def test_remarks_are_cut_where_they_stand(source: str, expected: str) -> None:
    assert without_remarks(source) == expected


def test_code_that_differs_stays_different() -> None:
    base = without_remarks("def f(x):\n    return x + 1\n")
    assert base == without_remarks("def f(x):  # adds\n\n    'Adds.'\n    return x + 1\n")
    assert base != without_remarks("def f(x):\n    return x + 2\n")
    ast.parse(base)
