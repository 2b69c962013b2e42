"""`Reach` in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pkb_gym.metrics.reach import ProblemReach, Reach


def reach_summary(found: Reach) -> str:
    """Problems reached and mean turns, such as "1 of 2 problems, after 3.0 turns in the mean"."""
    reached = sum(any(turn is not None for turn in each.turns) for each in found.problems)
    mean = "" if found.of_successes is None else f", after {found.of_successes.mean:.1f} turns in the mean"
    return f"{reached} of {len(found.problems)} problems{mean}"


def reach_text(found: Reach) -> str:
    """The summary and the turns of each problem, such as "...; turns: AllReduce 3, Gather never"."""
    of_each = ", ".join(f"{each.problem} {_turns(each)}" for each in found.problems)
    return f"{reach_summary(found)}; turns: {of_each}"


def _turns(each: ProblemReach) -> str:
    return "/".join("never" if turn is None else str(turn) for turn in each.turns)
