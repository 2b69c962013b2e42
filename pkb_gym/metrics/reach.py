"""Turns until an agent is as fast as the best kernels of another one, such as the experts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from pydantic import Field

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.best import best_kernels
from pkb_gym.metrics.estimates import Estimate, Floats, estimate_columns, estimate_means
from pkb_gym.metrics.results import AgentResults, Ints

NEVER = np.iinfo(np.int64).max


class ProblemReach(Record):
    """One problem."""

    problem: str
    target_speedup: float
    """Target of the speedup over the eager baseline."""
    turns: tuple[int | None, ...]
    """Number of turns of each judged sample up to and with the first that reached it; None where none did."""


class Reach(Record):
    """Turns until the kernels of one agent are as fast as the best of another."""

    target: str
    """Agent whose kernels are to be reached."""
    problems: tuple[ProblemReach, ...] = Field(min_length=1)
    """Problems of both agents, by name."""
    share: Estimate
    """Share of the samples that reached the target; each problem counts the same."""
    of_successes: Estimate | None
    """Mean turns of the samples that did; None without any."""
    per_success: Estimate | None
    """Turns of all samples, up to the one that reached the target or to their end, over the samples that did."""


def target_speedups(attempts: Iterable[Attempt]) -> dict[str, float]:
    """Problem -> speedup that an equally fast kernel reaches: the lower end of the 95 % interval of the best kernel.

    Problems without a right and timed kernel have none. Speedups are over the eager baseline.
    """
    found: dict[str, float] = {}
    for kernel in best_kernels(attempts, "eager"):
        if kernel.feedback.timing is not None:
            found[kernel.attempt.problem] = max(kernel.value, found.get(kernel.attempt.problem, 0.0))
    return found


def reach(results: AgentResults, target: str, speedups: Mapping[str, float]) -> Reach | None:
    """Turns until the measured speedup of a right kernel is no less than the target's; None without shared problems.

    t(sample)    = min {t: speedup of turn t >= target}
    share        = mean over problems of the share of samples with t
    of_successes = sum of t(sample) over samples that have it / their number
    per_success  = sum over all samples of t(sample), or of their turns / number of samples that have it

    The last is the expected running time of a restarted search; see `metrics.effort`. Both sums are of the shared
    problems, and their intervals are clustered by near-duplicates.

    Args:
        results: Results of the agent that is measured.
        target: Name of the target agent.
        speedups: Speedups of `target_speedups`, of results under the same configuration on the same machine.
    """
    shared = [number for number, name in enumerate(results.problems) if name in speedups]
    if not shared:
        return None
    first, played = _first_as_fast(results, speedups)
    problem, reached = results.episodes.problem, first < NEVER
    clusters = [results.clusters[number] for number in shared]

    def by_problem(values: Ints) -> Floats:
        return np.bincount(problem, values, len(results.problems))[shared].astype(np.float64)

    samples, successes = by_problem(np.ones_like(first)), by_problem(reached.astype(np.int64))
    of_successes, of_all = by_problem(np.where(reached, first, 0)), by_problem(np.where(reached, first, played))
    share = estimate_means((successes / samples)[:, None], clusters)[0]
    assert share is not None
    sums, counts = np.stack([of_successes, of_all], axis=1), np.stack([successes, successes], axis=1)
    found = estimate_columns(sums, counts, clusters)
    return Reach(
        target=target,
        problems=tuple(
            ProblemReach(
                problem=results.problems[number],
                target_speedup=speedups[results.problems[number]],
                turns=tuple(int(turn) if turn < NEVER else None for turn in first[problem == number]),
            )
            for number in shared
        ),
        share=share,
        of_successes=found[0],
        per_success=found[1],
    )


def _first_as_fast(results: AgentResults, speedups: Mapping[str, float]) -> tuple[Ints, Ints]:
    """For each judged episode: turns up to the first as fast as the target (else `NEVER`), and all its turns."""
    turns = results.turns
    wanted = np.array([speedups.get(name, np.inf) for name in results.problems])[turns.problem]
    is_as_fast = turns.speedup >= wanted  # false for NaN: not right, or not timed
    first, played = np.full(len(results.episodes), NEVER), np.zeros(len(results.episodes), dtype=np.int64)
    np.minimum.at(first, turns.episode[is_as_fast], turns.position[is_as_fast] + 1)
    np.maximum.at(played, turns.episode, turns.position + 1)
    return first, played
