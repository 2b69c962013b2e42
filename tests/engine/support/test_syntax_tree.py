"""Syntax trees in threads."""

from __future__ import annotations

import ast
import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.support import syntax_tree

NESTED = "def f(a):\n    return " + "(a + [" * 12 + "a" + "])" * 12 + "\n"


@pytest.fixture
def often_interrupted() -> Iterator[None]:
    """Threads take turns wherever one allocates."""
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()

    def let_others_go_on(*_: object) -> None:
        time.sleep(0)

    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(let_others_go_on)
    yield
    gc.callbacks.remove(let_others_go_on)
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(switch_s)


@pytest.mark.usefixtures("often_interrupted")
def test_threads_parse_side_by_side() -> None:
    """An environment's task failed with "AST constructor recursion depth mismatch" beside those of other sessions."""
    expected = ast.dump(ast.parse(NESTED * 20))
    with ThreadPoolExecutor(4) as threads:
        for tree in threads.map(syntax_tree.parse, [NESTED * 20] * 12):
            assert ast.dump(tree) == expected


def test_a_text_has_as_many_warnings_as_it_likes(recwarn: pytest.WarningsRecorder) -> None:
    syntax_tree.parse('"\\d"\n1 is 1\n')
    assert not recwarn.list
