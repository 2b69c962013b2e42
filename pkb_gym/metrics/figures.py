"""All figures of one agent, as a record: one owner for tables, pages and leaderboards."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.effort import QUANTITIES, Effort, UsageTotals, effort, usage_totals
from pkb_gym.metrics.estimates import Estimate, Floats, estimate_means
from pkb_gym.metrics.fast_p import (
    FastPCurve,
    area_under_fast_p,
    fast_at_every_k,
    fast_p_curve,
    mean_log_speedup,
    pass_at_every_k_of,
    roofline_utilisation,
)
from pkb_gym.metrics.outcomes import TimedBaseline
from pkb_gym.metrics.results import AgentResults
from pkb_gym.metrics.shares import Share, failure_modes, mechanism_usage, verdict_counts
from pkb_gym.metrics.turns import Plateau, TurnFigures, plateau, turn_figures

FASTER = 1.0
"""Speedup above which a right kernel is faster than the baseline."""


class AtK(Record):
    """The chance that at least one of k samples counts."""

    k: int
    estimate: Estimate
    """Estimate over the problems that have k samples."""


class SpeedFigures(Record):
    """Speed over one baseline."""

    baseline: TimedBaseline
    fast_1_at: tuple[AtK, ...]
    """fast_1@k for every k, by the measured speedup."""
    fast_1_low_at: tuple[AtK, ...] | None = None
    """fast_1@k by the lower end of the speedup's 95 % interval; None in an entry that was made without it."""
    curve: FastPCurve | None
    """fast_p over p by the measured speedup, with k = 1."""
    curve_low: FastPCurve | None = None
    """The same by the lower end of the speedup's 95 % interval; None in an entry that was made without it."""
    area: Estimate | None
    """Area under that curve over log p, in [0, 1]; see `log_area`."""
    log_speedup: Estimate | None
    """Mean natural logarithm of the speedup of right samples; None without any."""


class ProblemFigures(Record):
    """One agent's samples of one problem."""

    problem: str
    samples: int
    """Episodes that could be judged."""
    unjudged: int
    """Episodes in which the evaluator or its machine failed."""
    right: int
    """Samples with a right kernel."""
    pass_at: tuple[float, ...]
    """pass@1, pass@2, ..."""
    fast_1_at: tuple[float, ...]
    """fast_1@1, fast_1@2, ... over the eager baseline."""
    captured_fast_1_at: tuple[float, ...] | None
    """The same over the captured baseline; None where no kernel of the agent was compared with one."""
    speedup: float | None
    """The best over the eager baseline."""
    captured_speedup: float | None
    utilisation: float | None
    """The best."""
    verdict: str
    """`passed` where a sample is right, else the most frequent verdict."""


class AgentFigures(Record):
    """Everything that is computed of one agent's attempts; each problem counts the same."""

    agent: str
    problems: tuple[ProblemFigures, ...]
    """Figures of the problems by name; those without a judged episode included."""
    samples: int
    """Episodes that could be judged."""
    unjudged: int
    pass_at: tuple[AtK, ...]
    """pass@k for every k."""
    eager: SpeedFigures
    captured: SpeedFigures | None
    """Figures over the captured baseline; None where no kernel was compared with one."""
    registered: SpeedFigures | None = None
    """Figures over the captured baseline on registered memory; None where no kernel was compared with one."""
    utilisation: Estimate | None
    failure_modes: tuple[Share, ...]
    turns: tuple[TurnFigures, ...]
    plateau: Plateau | None
    mechanisms: tuple[Share, ...]
    effort: dict[str, Effort]
    """Effort by evaluations, completion_tokens and cost_usd, as far as attempts report them."""
    spent: UsageTotals


def agent_figures(results: AgentResults) -> AgentFigures:
    """The figures of one agent."""
    outcomes = results.turns.outcomes
    was_captured = any(outcome.was_captured for outcome in outcomes)
    per_problem = pass_at_every_k_of(results)
    eager = fast_at_every_k(results, FASTER, "eager")
    captured = fast_at_every_k(results, FASTER, "captured") if was_captured else None
    return AgentFigures(
        agent=results.agent,
        problems=_problems(results, per_problem, eager, captured),
        samples=len(results.episodes),
        unjudged=len(results.every_episode) - len(results.episodes),
        pass_at=_at_k(results, per_problem),
        eager=_speed(results, "eager", eager),
        captured=None if captured is None else _speed(results, "captured", captured),
        registered=_speed(results, "registered", fast_at_every_k(results, FASTER, "registered"))
        if any(outcome.was_registered for outcome in outcomes)
        else None,
        utilisation=_estimate(results, roofline_utilisation(results)),
        failure_modes=failure_modes(results),
        turns=turn_figures(results),
        plateau=plateau(results),
        mechanisms=mechanism_usage(results),
        effort={name: found for name in QUANTITIES if (found := effort(results, name)) is not None},
        spent=usage_totals(results),
    )


def at(figures: tuple[AtK, ...], k: int) -> Estimate | None:
    """The estimate for k; None where there are fewer samples."""
    return figures[k - 1].estimate if 1 <= k <= len(figures) else None


def _speed(results: AgentResults, baseline: TimedBaseline, fast_1: Floats) -> SpeedFigures:
    return SpeedFigures(
        baseline=baseline,
        fast_1_at=_at_k(results, fast_1),
        fast_1_low_at=_at_k(results, fast_at_every_k(results, FASTER, baseline, "low")),
        curve=fast_p_curve(results, baseline=baseline),
        curve_low=fast_p_curve(results, baseline=baseline, estimate="low"),
        area=_estimate(results, area_under_fast_p(results, baseline)),
        log_speedup=_estimate(results, mean_log_speedup(results, baseline)),
    )


def _at_k(results: AgentResults, per_problem: Floats) -> tuple[AtK, ...]:
    estimates = estimate_means(per_problem, results.clusters) if per_problem.size else []
    return tuple(AtK(k=k, estimate=found) for k, found in enumerate(estimates, start=1) if found is not None)


def _estimate(results: AgentResults, per_problem: Floats) -> Estimate | None:
    return estimate_means(per_problem[:, None], results.clusters)[0] if len(per_problem) else None


def _problems(
    results: AgentResults, pass_at: Floats, eager: Floats, captured: Floats | None
) -> tuple[ProblemFigures, ...]:
    every, rows_of = results.every_episode, {problem: row for row, problem in enumerate(results.problems)}
    verdicts: list[Counter[str]] = [Counter() for _ in results.names]
    for (number, verdict), count in verdict_counts(results).items():
        verdicts[number][verdict] = count
    found = []
    for number, problem in enumerate(results.names):
        rows = every.problem == number
        judged = every.of(rows & every.is_judged)
        row = rows_of.get(problem)
        right = int(judged.is_right.sum())
        found.append(
            ProblemFigures(
                problem=problem,
                samples=len(judged),
                unjudged=int(rows.sum()) - len(judged),
                right=right,
                pass_at=_row(pass_at, row),
                fast_1_at=_row(eager, row),
                captured_fast_1_at=None if captured is None else _row(captured, row),
                speedup=_best(judged.speedup),
                captured_speedup=None if captured is None else _best(judged.captured_speedup),
                utilisation=_best(judged.utilisation),
                verdict="passed" if right else verdicts[number].most_common(1)[0][0],
            )
        )
    return tuple(found)


def _best(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.max()) if len(present) else None


def _row(table: Floats, row: int | None) -> tuple[float, ...]:
    return () if row is None else tuple(table[row][~np.isnan(table[row])].tolist())
