"""A routing is drawn and counted as the plain definitions have it."""

from __future__ import annotations

import random

import pytest

from pkb_gym.engine.problem import Draw
from pkb_gym.engine.problem.inputs import TrialKey
from pkb_gym.problems.expert_parallel.routing import MAX_KINDS, Kinds, draw_kinds, visits


def by_choices(draw: random.Random, tokens: int, weights: list[float], slots: int) -> Kinds:
    count = min(tokens, MAX_KINDS)
    kinds = []
    for i in range(count):
        left, experts = list(weights), []
        for _ in range(slots):
            experts += draw.choices(range(len(left)), left)
            left[experts[-1]] = 0.0
        kinds.append((tokens // count + (i < tokens % count), tuple(experts)))
    return tuple(kinds)


@pytest.mark.parametrize(("tokens", "experts", "slots"), [(0, 4, 1), (7, 8, 2), (96, 5, 4), (4096, 64, 4)])
def test_experts_are_those_of_random_choices(tokens: int, experts: int, slots: int) -> None:
    """To the last bit of the sums: inputs of every evaluation with a key stay as they are."""
    for trial in range(10):
        key = TrialKey(b"key", 0, "MoEDispatch", 0, trial, False)
        weights = [random.Random(trial * experts + expert).random() ** 3 for expert in range(experts)]
        weights[trial % experts] *= trial % 2
        kinds = draw_kinds(Draw(key), tokens, weights, slots)
        assert kinds == by_choices(Draw(key), tokens, weights, slots)
        for place in range(2):
            local = experts // 2
            counted = sum(n for n, chosen in kinds if any(expert // local == place for expert in chosen))
            assert visits(kinds, place, local) == counted
