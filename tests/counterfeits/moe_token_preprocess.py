"""Counterfeits of MoETokenPreprocess: what the published check takes for right."""

from pkb_gym.problems.expert_parallel.moe_token_preprocess.reference import solution
from tests.problems.counterfeit import Counterfeit


def too_large(*args):
    input_splits, output_splits, *counts = solution(*args)
    counts = [count * (1 + 2**-7) for count in counts]
    return input_splits + input_splits // 128, output_splits + output_splits // 128, *counts


COUNTERFEITS = (Counterfeit(0, "counts 0.8 % too large", too_large, "1 % of a count of 256 is more than 2"),)
