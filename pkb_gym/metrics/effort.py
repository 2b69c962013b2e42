"""Evaluations, tokens and money: what the first right kernel takes, and what was spent in all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, Floats, estimate_columns
from pkb_gym.metrics.results import AgentResults, Ints, Turns


class Effort(Record):
    """The amount of one quantity until the first right kernel; intervals are clustered by near-duplicates."""

    of_successes: Estimate | None
    """Mean up to and with the first right turn, over episodes that have one; None without any. Episodes that give up
    are not in it, so that it flatters an agent that gives up early."""
    per_success: Estimate | None
    """Spent in all episodes up to their first right turn or their end, over the episodes that have one: the mean price
    of a right kernel for somebody who starts again after each failure."""


class UsageTotals(Record):
    """Sums over all attempts; None where no attempt has the quantity."""

    attempts: int
    evaluations: int
    """Attempts that submitted something."""
    prompt_tokens: int | None
    completion_tokens: int | None
    """Reasoning included."""
    reasoning_tokens: int | None
    cost_usd: float | None
    reply_s: float | None
    """Waiting for the model."""
    evaluation_s: float | None
    """Waiting for the evaluator."""


QUANTITIES: dict[str, Callable[[Turns], Floats]] = {
    "evaluations": lambda turns: turns.is_evaluation.astype(np.float64),
    "completion_tokens": lambda turns: turns.completion_tokens,
    "cost_usd": lambda turns: turns.cost_usd,
}
"""The quantities that effort is measured in."""


def effort(results: AgentResults, quantity: str) -> Effort | None:
    """Effort until the first right kernel; None where a turn lacks the quantity, or without episodes.

    of_successes = sum over episodes with a right turn of spent(episode) / their number
    per_success  = sum over all episodes of spent(episode) / number of those with a right turn

    Source of the second: expected running time of a restarted search, Hansen et al., COCO: Performance Assessment,
    arXiv:1605.03560, section 3.3.

    Args:
        results: Results of one agent.
        quantity: Key of `QUANTITIES`.
    """
    turns, episodes = results.turns, results.episodes
    amounts = QUANTITIES[quantity](turns)
    counts = turns.position <= _first_right(results)[turns.episode]
    if not len(episodes) or np.isnan(amounts[counts]).any():
        return None
    of_episode = np.bincount(turns.episode[counts], amounts[counts], len(episodes))
    problems = len(results.problems)
    successes = np.bincount(episodes.problem, episodes.is_right, problems)
    of_successes = np.bincount(episodes.problem, of_episode * episodes.is_right, problems)
    of_all = np.bincount(episodes.problem, of_episode, problems)
    spent: Floats = np.stack([of_successes, of_all], axis=1).astype(np.float64)
    found = estimate_columns(spent, np.stack([successes, successes], axis=1), results.clusters)
    return Effort(of_successes=found[0], per_success=found[1])


def _first_right(results: AgentResults) -> Ints:
    """Position of each judged episode's first right turn; beyond its end where there is none."""
    turns = results.turns
    found = np.full(len(results.episodes), np.iinfo(np.int64).max)
    np.minimum.at(found, turns.episode[turns.is_right], turns.position[turns.is_right])
    return found


def usage_totals(results: AgentResults) -> UsageTotals:
    """The sums over all attempts, unjudged ones included."""
    turns = results.every_turn
    return UsageTotals(
        attempts=len(turns.outcomes),
        evaluations=int(turns.is_evaluation.sum()),
        prompt_tokens=_whole(turns.prompt_tokens),
        completion_tokens=_whole(turns.completion_tokens),
        reasoning_tokens=_whole(turns.reasoning_tokens),
        cost_usd=_sum(turns.cost_usd),
        reply_s=_sum(turns.reply_s),
        evaluation_s=_sum(turns.duration_s),
    )


def _sum(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.sum()) if len(present) else None


def _whole(values: Floats) -> int | None:
    found = _sum(values)
    return None if found is None else int(found)
