"""The ends of attempts, and the mechanisms by which right kernels move data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from pydantic import Field

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, estimate_columns
from pkb_gym.metrics.results import AgentResults
from pkb_gym.problems.splits import cluster_of

LIBRARY, NOT_REPORTED = "library collectives", "not reported"
"""Mechanisms beside those of `Mechanism`: calls of the baseline's library that no trace shows, and no evidence."""


Item: TypeAlias = tuple[int, tuple[str, ...]]
"""Number of a problem, and the names that one attempt has."""


class Share(Record):
    """One of several outcomes."""

    name: str
    count: int = Field(ge=1)
    share: Estimate
    """Share of all that were counted; its interval is clustered by near-duplicates."""


def failure_modes(results: AgentResults) -> tuple[Share, ...]:
    """Verdicts of all attempts, most frequent first: `passed`, each failure, `no_submission`.

    share = attempts with the verdict / attempts
    """
    items: Counter[Item] = Counter(
        {(problem, (verdict,)): count for (problem, verdict), count in verdict_counts(results).items()}
    )
    return _shares(items, tuple(map(cluster_of, results.names)))


def verdict_counts(results: AgentResults) -> Counter[tuple[int, str]]:
    """Attempts by the number of their problem in `results.names` and their verdict."""
    turns = results.every_turn
    return Counter(zip(turns.problem.tolist(), (outcome.verdict for outcome in turns.outcomes), strict=True))


def mechanism_usage(results: AgentResults) -> tuple[Share, ...]:
    """Mechanisms of the best right kernel of each judged episode, most frequent first.

        share = right kernels with the mechanism / right kernels

    Shares add up to more than 1 where kernels use several. A profile is an untrusted rank report, and on the CPU
    it has no mechanism: `not reported`.
    """
    turns, rows = results.turns, best_turns(results)
    outcomes = (turns.outcomes[row] for row in rows)
    seen = Counter(
        zip(turns.problem[rows].tolist(), ((each.mechanisms, each.calls_library) for each in outcomes), strict=True)
    )
    items: Counter[Item] = Counter()
    for (problem, (mechanisms, calls_library)), count in seen.items():
        items[problem, _mechanisms(mechanisms, calls_library)] += count
    return _shares(items, results.clusters)


def best_turns(results: AgentResults) -> list[int]:
    """Rows of `results.turns`: the fastest right turn of each episode, the first of those where none was timed."""
    turns = results.turns
    right = np.flatnonzero(turns.is_right)
    order = right[np.lexsort((turns.position[right], -np.nan_to_num(turns.speedup[right]), turns.episode[right]))]
    _, first = np.unique(turns.episode[order], return_index=True)
    return [int(row) for row in order[first]]


def _mechanisms(mechanisms: tuple[str, ...] | None, calls_library: bool | None) -> tuple[str, ...]:
    reported = tuple(dict.fromkeys(mechanisms or ()))
    if calls_library and "NCCL" not in reported:
        reported = (*reported, LIBRARY)
    return reported or (NOT_REPORTED,)


def _shares(items: Counter[Item], clusters: Sequence[str]) -> tuple[Share, ...]:
    """The share of each name among all items; `clusters` has the cluster of each problem."""
    total: Counter[str] = Counter()
    of_problem = np.zeros((len(clusters), 1))
    for (problem, names), count in items.items():
        of_problem[problem] += count
        for name in names:
            total[name] += count
    ordered = sorted(total, key=lambda name: (-total[name], name))
    if not ordered:
        return ()
    place = {name: column for column, name in enumerate(ordered)}
    sums = np.zeros((len(clusters), len(ordered)))
    for (problem, names), count in items.items():
        for name in names:
            sums[problem, place[name]] += count
    shares = estimate_columns(sums, np.repeat(of_problem, len(ordered), axis=1), clusters)
    return tuple(
        Share(name=name, count=total[name], share=share)
        for name, share in zip(ordered, shares, strict=True)
        if share is not None
    )
