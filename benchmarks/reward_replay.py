"""What each preset teaches a policy over recorded kernels: the same kernels, evaluations and seeds for all.

Of each prompt the policy is a softmax over the kernels that were submitted on it, and begins with their frequencies. A
step draws `group` kernels a prompt, and one of its recorded evaluations for each, values them by the preset, compares
them as the preset's recipe does, and moves the logits along the gradient of the expected advantage. Advantages are
divided by their root mean square under the first policy, so that the unit of a reward does not count.

A kernel that was evaluated once repeats exactly: how noise misleads shows only where kernels were evaluated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np

from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.rewards.advantages import leave_one_out
from pkb_gym.rewards.recipes import RECIPES
from pkb_gym.rewards.returns import improvement_only
from pkb_gym.training.learner.turn_credit import Credit

STEPS, RATE, SEEDS = 10, 1.0, 10
"""Updates; length of a step along the gradient; runs that are averaged."""
FIRST_GROUPS = 50
"""Groups of each prompt by which the unit of the advantages is found."""


@dataclass(frozen=True)
class Arm:
    """A kernel of a prompt.

    Attributes:
        draws: how often it was submitted.
        values: of each of its evaluations, by the preset.
        right: share of its evaluations that found it right.
        time_us: geometric mean; None where it is not right.
    """

    draws: int
    values: Sequence[float]
    right: float
    time_us: float | None


@dataclass(frozen=True)
class Taught:
    """Of one prompt, before and after.

    Attributes:
        correct: probability of a right kernel.
        slowdown: expected log2 of the time of a right kernel over that of the fastest; None with fewer than two.
    """

    correct: float
    slowdown: float | None


def credit_of(preset: str) -> Credit:
    """How the preset's recipe compares a group; by leaving one out where there is no recipe."""
    recipe = RECIPES.get(preset)
    return Credit(improvement_only, leave_one_out) if recipe is None else Credit(recipe.returns, recipe.advantages)


def figures(
    preset: str, prompts: Mapping[str, Sequence[Arm]], problem_of: Mapping[str, str], group: int
) -> dict[str, Any]:
    """Gains in the share correct and in slowdown over all prompts, clustered by problem.

    Args:
        preset: whose recipe compares the kernels of a group.
        prompts: prompt -> its kernels, valued by the preset; those with one kernel alone teach nothing.
        problem_of: of each prompt.
        group: kernels that are drawn together.
    """
    runs = [replay(preset, prompts, group, seed) for seed in range(SEEDS)]
    before = {key: taught(arms, start(arms)) for key, arms in prompts.items()}
    correct: dict[str, list[float]] = {}
    slowdown: dict[str, list[float]] = {}
    for key, was in before.items():
        after = [run[key] for run in runs]
        gain = fmean(one.correct for one in after) - was.correct
        correct.setdefault(problem_of[key], []).append(gain)
        if was.slowdown is not None:
            less = was.slowdown - fmean(one.slowdown for one in after if one.slowdown is not None)
            slowdown.setdefault(problem_of[key], []).append(less)
    return {
        "steps": STEPS,
        "seeds": SEEDS,
        "correct_before": fmean(was.correct for was in before.values()) if before else None,
        "correct": _dumped(estimate(correct.values())),
        "speed": _dumped(estimate(slowdown.values())),
    }


def replay(preset: str, prompts: Mapping[str, Sequence[Arm]], group: int, seed: int) -> dict[str, Taught]:
    """One run: what the policy does on each prompt at its end."""
    drawn = np.random.default_rng(seed)
    credit = credit_of(preset)
    logits = {key: np.log(start(arms)) for key, arms in prompts.items()}
    first = [
        advantage
        for key, arms in prompts.items()
        for _ in range(FIRST_GROUPS)
        for advantage in _compared(credit, arms, _softmax(logits[key]), group, drawn)[1]
    ]
    unit = float(np.sqrt(np.mean(np.square(first)))) if first else 0.0
    for _ in range(STEPS if unit > 0 else 0):
        for key, arms in prompts.items():
            shares = _softmax(logits[key])
            chosen, advantages = _compared(credit, arms, shares, group, drawn)
            gradient = -shares * np.sum(advantages)
            np.add.at(gradient, chosen, advantages)
            logits[key] = logits[key] + RATE * gradient / unit / group
    return {key: taught(arms, _softmax(logits[key])) for key, arms in prompts.items()}


def start(arms: Sequence[Arm]) -> np.ndarray:
    """The frequencies of the kernels."""
    draws = np.array([arm.draws for arm in arms], dtype=float)
    found: np.ndarray = draws / draws.sum()
    return found


def taught(arms: Sequence[Arm], shares: np.ndarray) -> Taught:
    """The figures of a policy on a prompt."""
    correct = float(sum(share * arm.right for share, arm in zip(shares, arms, strict=True)))
    timed = [(float(share), arm.time_us) for share, arm in zip(shares, arms, strict=True) if arm.time_us is not None]
    total = sum(share for share, _ in timed)
    if len(timed) < 2 or total <= 0:
        return Taught(correct, None)
    fastest = min(time for _, time in timed)
    return Taught(correct, sum(share * log(time / fastest, 2) for share, time in timed) / total)


def geometric_mean(times: Sequence[float]) -> float | None:
    """Of positive numbers; None of none."""
    return exp(fmean(map(log, times))) if times else None


def _compared(
    credit: Credit, arms: Sequence[Arm], shares: np.ndarray, group: int, drawn: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Kernels that are drawn as a group, and their advantages."""
    chosen = drawn.choice(len(arms), size=group, p=shares)
    values = [[arms[index].values[drawn.integers(len(arms[index].values))]] for index in chosen]
    return chosen, np.array([turns[0] for turns in credit.of_group(values)])


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    found: np.ndarray = powers / powers.sum()
    return found


def _dumped(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else found.model_dump(mode="json")
