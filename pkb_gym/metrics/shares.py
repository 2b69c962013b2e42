"""How attempts end, and by which mechanisms right kernels move data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, estimate_columns
from pkb_gym.metrics.outcomes import Outcome
from pkb_gym.metrics.results import AgentResults

LIBRARY, UNTOLD = "library collectives", "not told"
"""Mechanisms beside those of `Mechanism`: calls of the baseline's library that no trace shows, and no evidence."""


class Share(Record):
    """One of several outcomes."""

    name: str
    count: int = Field(ge=1)
    share: Estimate
    """Of all that were counted; its interval is clustered by problem."""


def failure_modes(results: AgentResults) -> tuple[Share, ...]:
    """Verdicts of all attempts, most frequent first: `passed`, each failure, `no_submission`.

    share = attempts with the verdict / attempts
    """
    verdicts: list[list[tuple[str]]] = [[] for _ in results.names]
    for problem, outcome in zip(results.every_turn.problem.tolist(), results.every_turn.outcomes, strict=True):
        verdicts[problem].append((outcome.verdict,))
    return _shares(verdicts)


def mechanism_usage(results: AgentResults) -> tuple[Share, ...]:
    """Mechanisms of the best right kernel of each judged episode, most frequent first.

        share = right kernels with the mechanism / right kernels

    Shares add up to more than 1 where kernels use several. A profile is an untrusted rank report, and on the CPU tells
    of no mechanism: `not told`.
    """
    found: list[list[tuple[str, ...]]] = [[] for _ in results.problems]
    for row in best_turns(results):
        found[results.turns.problem[row]].append(_mechanisms(results.turns.outcomes[row]))
    return _shares(found)


def best_turns(results: AgentResults) -> list[int]:
    """Rows of `results.turns`: the fastest right turn of each episode, the first of those where none was timed."""
    turns = results.turns
    right = np.flatnonzero(turns.is_right)
    order = right[np.lexsort((turns.position[right], -np.nan_to_num(turns.speedup[right]), turns.episode[right]))]
    _, first = np.unique(turns.episode[order], return_index=True)
    return [int(row) for row in order[first]]


def _mechanisms(turn: Outcome) -> tuple[str, ...]:
    known = tuple(dict.fromkeys(turn.mechanisms or ()))
    if turn.calls_library and "NCCL" not in known:
        known = (*known, LIBRARY)
    return known or (UNTOLD,)


def _shares(clusters: Sequence[Sequence[Iterable[str]]]) -> tuple[Share, ...]:
    """Of each name among the items of all clusters; an item may have several names."""
    counted = [Counter(name for item in cluster for name in item) for cluster in clusters]
    total: Counter[str] = sum(counted, Counter())
    names = [name for name, _ in sorted(total.items(), key=lambda entry: (-entry[1], entry[0]))]
    if not names:
        return ()
    sums = np.array([[float(of_cluster[name]) for name in names] for of_cluster in counted])
    counts = np.repeat([[float(len(cluster))] for cluster in clusters], len(names), axis=1)
    shares = estimate_columns(sums, counts)
    return tuple(
        Share(name=name, count=total[name], share=share)
        for name, share in zip(names, shares, strict=True)
        if share is not None
    )
