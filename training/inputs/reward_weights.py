"""Weights of a corpus's conversations by reward, so that the best kernels of each problem are imitated most."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import exp, isfinite

from datasets import Dataset

from pkb_gym.engine.errors import ConfigError


def best_of_each_problem(corpus: Dataset, keep: int) -> Dataset:
    """The `keep` conversations of each problem with the greatest rewards, in the corpus's order; first of equal ones.

    Raises:
        ConfigError: `keep` is less than 1.
    """
    if keep < 1:
        raise ConfigError(f"best_per_problem must be at least 1, got {keep}")
    rewards = list(corpus["reward"])
    kept = [
        index
        for rows in _rows_by_problem(corpus).values()
        for index in sorted(rows, key=lambda index: -rewards[index])[:keep]
    ]
    return corpus.select(sorted(kept))


def weighed_by_reward(corpus: Dataset, temperature: float, seed: int) -> Dataset:
    """The corpus with copies of each conversation by its reward; each problem keeps its number of rows.

        w_i = exp((r_i - max r) / temperature)         over the n conversations i of one problem
        copies of i: floor or ceiling of n * w_i / sum w, with n * w_i / sum w on average

    A loss over the result has in expectation the weights of a loss that is weighed by w. Weights are compared within a
    problem: easy problems, whose rewards are greater, crowd out no hard ones. As the temperature grows all weigh the
    same; as it falls the best alone are left.

    Source of the weights: Peters, Schaal, Reinforcement Learning by Reward-Weighted Regression, ICML 2007; with the
    best reward in place of a baseline, Peng et al., Advantage-Weighted Regression, arXiv:1910.00177, equation 4. Copies
    are drawn by systematic resampling (Kitagawa, Journal of Computational and Graphical Statistics 5(1), 1996).

    Args:
        corpus: Rows of `pkb export corpus`.
        temperature: Difference of rewards that divides a weight by e; positive.
        seed: Seed of the resampling.

    Returns:
        Corpus of the same number of rows, in its order, copies side by side.

    Raises:
        ConfigError: the temperature is not positive and finite.
    """
    if not (isfinite(temperature) and temperature > 0):
        raise ConfigError(f"reward_temperature must be positive and finite, got {temperature}")
    rewards = list(corpus["reward"])
    chosen: list[int] = []
    for problem, rows in _rows_by_problem(corpus).items():
        best = max(rewards[index] for index in rows)
        weights = [exp((rewards[index] - best) / temperature) for index in rows]
        start = random.Random(f"{seed} {problem}").random()
        copies = systematic_copies(weights, len(rows), start)
        chosen += [index for index, count in zip(rows, copies, strict=True) for _ in range(count)]
    return corpus.select(sorted(chosen))


def systematic_copies(weights: Sequence[float], total: int, start: float) -> list[int]:
    """Copies of each: the points start, start + 1, ... below `total` that fall into its share of [0, total).

    Args:
        weights: Weights, not negative and not all 0.
        total: Number of copies of all rows together.
        start: Offset of the first sample, in [0, 1).

    Example:
        >>> systematic_copies([2.0, 1.0, 1.0], 4, start=0.5)
        [2, 1, 1]
        >>> systematic_copies([6.0, 1.0, 1.0], 4, start=0.2)
        [3, 1, 0]
    """
    scale = total / sum(weights)
    ends = [end * scale for end in accumulate(weights)]
    ends[-1] = float(total)  # whatever rounding left of it
    below = [sum(start + point < end for point in range(total)) for end in ends]
    return [after - before for before, after in zip([0, *below], below, strict=False)]


def _rows_by_problem(corpus: Dataset) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for index, problem in enumerate(corpus["problem"]):
        rows[problem].append(index)
    return rows
