"""Two agents on the problems that both answered: paired differences, and which problems flipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Literal

import numpy as np
from pydantic import Field

from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.conditions import ConditionDifference
from pkb_gym.metrics.estimates import Estimate, Floats, estimate_means
from pkb_gym.metrics.fast_p import area_under_fast_p, fast_at_every_k, mean_log_speedup, pass_at_every_k_of
from pkb_gym.metrics.figures import FASTER
from pkb_gym.metrics.outcomes import TimedBaseline
from pkb_gym.metrics.reach import Reach, reach
from pkb_gym.metrics.results import AgentResults
from pkb_gym.problems.splits import cluster_of


class Difference(Record):
    """One metric of two agents, over the problems on which both have it."""

    metric: str
    a: float
    """Mean of the first agent over those problems."""
    b: float
    """Mean of the second one."""
    difference: Estimate
    """Mean of b - a by problem: problems that are hard for both cancel. Interval by bootstrap over clusters of
    near-duplicate problems."""


class Flip(Record):
    """A problem that one agent solves and the other does not."""

    problem: str
    what: Literal["right", "faster"]
    """Whether a sample was right, or right and faster than the baseline."""
    gained: bool
    """Whether it is the second agent that solves it."""
    a: str
    """Samples that count of all, such as "0/3"."""
    b: str


class AgentComparison(Record):
    """The result of `compare`."""

    schema_version: Literal[1] = 1
    a: str
    b: str
    baseline: TimedBaseline
    problems: int = Field(ge=1)
    """Number of problems that both answered, and that could be judged."""
    only_a: tuple[str, ...]
    """Problems without a judged sample of the second agent."""
    only_b: tuple[str, ...]
    differences: tuple[Difference, ...]
    flips: tuple[Flip, ...]
    differing: tuple[ConditionDifference, ...] = ()
    """Conditions that differ, where results were compared all the same."""
    reach: Reach | None
    """Turns until the second agent is as fast as the first one's best kernels; None where none of these was timed."""


METRICS: dict[str, Callable[[AgentResults, TimedBaseline], Floats]] = {
    "pass@1": lambda results, _: _first(pass_at_every_k_of(results)),
    "fast_1": lambda results, baseline: _first(fast_at_every_k(results, FASTER, baseline)),
    "fast_1 by lower end": lambda results, baseline: _first(fast_at_every_k(results, FASTER, baseline, "low")),
    "area under fast_p": area_under_fast_p,
    "log speedup of right kernels": mean_log_speedup,
}
"""Name -> values of `AgentResults.problems`."""


def compare(
    a: AgentResults,
    b: AgentResults,
    baseline: TimedBaseline = "eager",
    targets: Mapping[str, float] | None = None,
    differing: Sequence[ConditionDifference] = (),
) -> AgentComparison | None:
    """Compares the second agent with the first; None where they share no problem.

    d = mean over shared problems of (m_b(problem) - m_a(problem))

    Args:
        a: Results of the first agent.
        b: Results of the second agent.
        baseline: Baseline of the speedups.
        targets: `target_speedups` of the first agent, which the second may reach.
        differing: Conditions that differ between the two, for the record.
    """
    shared = sorted(set(a.problems) & set(b.problems))
    if not shared:
        return None
    differences = []
    clusters = list(map(cluster_of, shared))
    for name, metric in METRICS.items():
        of_a = dict(zip(a.problems, metric(a, baseline), strict=True))
        of_b = dict(zip(b.problems, metric(b, baseline), strict=True))
        pairs = np.array([(of_a[problem], of_b[problem]) for problem in shared])
        present = ~np.isnan(pairs).any(axis=1)
        pairs = pairs[present]
        if len(pairs):
            found = estimate_means(pairs[:, 1:] - pairs[:, :1], list(compress(clusters, present)))[0]
            assert found is not None
            first, second = pairs.mean(axis=0)
            differences.append(Difference(metric=name, a=float(first), b=float(second), difference=found))
    return AgentComparison(
        a=a.agent,
        b=b.agent,
        baseline=baseline,
        problems=len(shared),
        only_a=tuple(sorted(set(a.problems) - set(b.problems))),
        only_b=tuple(sorted(set(b.problems) - set(a.problems))),
        differences=tuple(differences),
        flips=tuple(flip for problem in shared for flip in _flips(a, b, problem, baseline)),
        differing=tuple(differing),
        reach=reach(b, a.agent, targets or {}),
    )


def _flips(a: AgentResults, b: AgentResults, problem: str, baseline: TimedBaseline) -> list[Flip]:
    found = []
    counts_a, counts_b = _counts(a, problem, baseline), _counts(b, problem, baseline)
    for what, (of_a, all_a), (of_b, all_b) in zip(("right", "faster"), counts_a, counts_b, strict=True):
        if bool(of_a) != bool(of_b):
            found.append(Flip(problem=problem, what=what, gained=of_b > 0, a=f"{of_a}/{all_a}", b=f"{of_b}/{all_b}"))
    return found


def _counts(results: AgentResults, problem: str, baseline: TimedBaseline) -> tuple[tuple[int, int], tuple[int, int]]:
    """(right, samples) and (faster, samples)."""
    rows = results.episodes.problem == results.problems.index(problem)
    right = int(results.episodes.is_right[rows].sum())
    faster = int((results.episodes.best_speedup(baseline)[rows] > FASTER).sum())
    samples = int(rows.sum())
    return (right, samples), (faster, samples)


def _first(table: Floats) -> Floats:
    return table[:, 0] if table.size else np.zeros(0)
