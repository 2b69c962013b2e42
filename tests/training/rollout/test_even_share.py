"""Equal shares of prompts: as many on each rank, and replies back in order."""

from __future__ import annotations

import doctest
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.training.rollout import even_share
from pkb_gym.training.rollout.even_share import budget_groups, generate_evenly
from tests.waiting import PATIENCE_S


class Host:
    """One of several ranks, each a thread."""

    def __init__(self, rank: int, items: list[object], barrier: threading.Barrier) -> None:
        self.rank, self._items, self._barrier = rank, items, barrier

    def gather(self, item):
        self._items[self.rank] = item
        self._barrier.wait(PATIENCE_S)
        found = list(self._items)
        self._barrier.wait(PATIENCE_S)
        return found


@pytest.mark.parametrize("counts", [[5, 3], [0, 1], [4, 0, 0], [2, 2], [0, 0], [1]])
def test_each_rank_passes_as_many_prompts_and_gets_its_own_replies(counts):
    ranks = len(counts)
    items, barrier = [None] * ranks, threading.Barrier(ranks)
    passed = [[] for _ in counts]

    def play(rank: int) -> list[str]:
        def generate(prompts):
            passed[rank].append(len(prompts))
            return [f"reply to {prompt}" for prompt in prompts]

        prompts = [[100 * rank + number] for number in range(counts[rank])]
        return generate_evenly(Host(rank, items, barrier), prompts, generate)

    with ThreadPoolExecutor(ranks) as threads:
        replies = list(threads.map(play, range(ranks)))
    assert replies == [[f"reply to {[100 * rank + number]}" for number in range(n)] for rank, n in enumerate(counts)]
    assert passed == [[-(-sum(counts) // ranks)] if any(counts) else [] for _ in counts]


def test_examples_in_docstrings_hold():
    result = doctest.testmod(even_share)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("context", [100, 120, math.inf])
def test_no_prompt_and_its_limit_are_longer_than_the_context(context):
    sizes = [[(10, 90), (95, 5), (60, 40)], [], [(50, 50), (1, 20)]]
    groups = budget_groups(sizes, context)
    placed = sorted((rank, place) for _, ranks in groups for rank, places in enumerate(ranks) for place in places)
    assert placed == [(rank, place) for rank, own in enumerate(sizes) for place in range(len(own))], "each once"
    for limit, ranks in groups:
        for rank, places in enumerate(ranks):
            for place in places:
                length, budget = sizes[rank][place]
                assert length + limit <= context and budget <= limit
    assert budget_groups([[], []], context) == []
    if context == math.inf:
        assert len(groups) == 1
