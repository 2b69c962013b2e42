"""The longest shared run, against all pairs of places."""

from __future__ import annotations

import doctest
import random
from collections.abc import Sequence

import pytest

from pkb_gym.engine.support import source_tokens
from pkb_gym.engine.support.source_tokens import tokens_of
from pkb_gym.metrics import shared_runs
from pkb_gym.metrics.shared_runs import longest_shared_runs, near_copies


@pytest.mark.parametrize("module", [shared_runs, source_tokens])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def _longest(a: Sequence[str], b: Sequence[str]) -> int:
    """By trying every pair of places."""
    best = 0
    for i in range(len(a)):
        for j in range(len(b)):
            run = 0
            while i + run < len(a) and j + run < len(b) and a[i + run] == b[j + run]:
                run += 1
            best = max(best, run)
    return best


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_the_longest(seed):
    draw = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(draw.choice("abc") for _ in range(draw.randint(0, most)))

    sources, known = [text(40) for _ in range(6)], [text(60) for _ in range(4)]
    found = longest_shared_runs(sources, known)
    assert found == [max(_longest(tokens_of(one), tokens_of(other)) for other in known) for one in sources]


def test_no_run_crosses_from_one_text_into_the_next():
    assert longest_shared_runs(["a b c d"], ["a b", "c d"]) == [2]
    assert longest_shared_runs(["a b c d"], []) == [0] and longest_shared_runs([], ["a"]) == []


def test_a_kernel_under_another_name_is_a_near_copy_and_one_of_its_own_is_not():
    known = "void reduce(float* a, int n) { for (int i = 0; i < n; ++i) a[i] += a[i + n]; }"
    renamed = known.replace("reduce", "gather")
    own = "void gather(float* a, int n) { while (n--) *a++ = 0.f; memcpy(a, a + n, n); int total = n * 4 - 3; }"
    assert near_copies([renamed, "// as before\n" + known, own, ""], [known]) == [True, True, False, False]
