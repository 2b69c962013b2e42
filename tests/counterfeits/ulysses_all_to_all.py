"""Counterfeits of UlyssesAllToAll: what the published check takes for right."""

from pkb_gym.problems.context_parallel.ulysses_all_to_all.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def first_two_dims(x, scatter_dim, gather_dim, group=None):
    return reference(x, 0, 1, group)


COUNTERFEITS = (Counterfeit(0, "dimensions 0 and 1", first_two_dims, "scatter_dim is always 0 and gather_dim 1"),)
