"""Whether results hold: a sample of them, evaluated again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.conditions import Conditions, condition_differences
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.metrics.groups import differences_text
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right

TOLERANCE = 0.1
"""Share of a speedup that another run on the same machine may lack."""


class Verification(Record):
    """One attempt and its second evaluation."""

    agent: str | None
    problem: str
    sample: int
    turn: int
    before: str
    """The recorded verdict."""
    again: str
    speedup: float | None
    """Recorded speedup."""
    speedup_again: float | None
    holds: bool | None
    """Whether it holds here; None where this machine could not judge it."""
    faster: bool = False
    """Whether it holds and is faster than recorded, by more than the tolerance."""
    reason: str


def draw_sample(attempts: Sequence[Attempt], count: int, seed: int) -> list[Attempt]:
    """Attempts to evaluate again, half of them right as far as there are: claims of right kernels are what counts.

    Args:
        attempts: Attempts of any agents; those without a source or a judgement are passed over.
        count: Number of attempts to draw.
        seed: Seed of the draw.
    """
    judged = [one for one in attempts if one.source is not None and one.feedback is not None]
    judged = [one for one in judged if one.feedback is not None and not is_infrastructure_failure(one.feedback)]
    right = [one for one in judged if one.feedback is not None and is_right(one.feedback)]
    wrong = [one for one in judged if one.feedback is not None and not is_right(one.feedback)]
    of_right = min(len(right), max((count + 1) // 2, count - len(wrong)))
    draw = random.Random(seed)
    return [*draw.sample(right, of_right), *draw.sample(wrong, min(len(wrong), count - of_right))]


def config_again(attempt: Attempt) -> EvalConfig:
    """The configuration as asked, with the choices that it left open as they were resolved.

    Limits of time and memory are left to the machine that evaluates again.
    """
    config = attempt.config
    if config is None:
        return attempt.requested
    names = ("device", "world_size", "size", "dtype", "language", "protocol", "trials")
    return attempt.requested.model_copy(update={name: getattr(config, name) for name in names})


def verify(attempt: Attempt, again: Feedback, tolerance: float = TOLERANCE) -> Verification:
    """Whether a recorded result holds.

        right before <=> right again, and for right kernels that were timed under equal `Conditions`
        speedup_high again >= (1 - tolerance) * speedup_low before

    It is faster than recorded where the same fails with before and again exchanged:

        speedup_high before < (1 - tolerance) * speedup_low again

    Args:
        attempt: Attempt with its recorded feedback.
        again: Feedback of the second evaluation.
        tolerance: Share of the speedup that another run may lack, in [0, 1).
    """
    before = attempt.feedback
    assert before is not None, "`draw_sample` passes over attempts without feedback"
    judgement = _judge(before, again, tolerance)
    return Verification(
        agent=attempt.agent,
        problem=attempt.problem,
        sample=attempt.sample,
        turn=attempt.turn,
        before=attempt.verdict,
        again="passed" if again.failure is None else again.failure.value,
        speedup=before.speedup,
        speedup_again=again.speedup,
        holds=judgement.holds,
        faster=judgement.faster,
        reason=judgement.reason,
    )


class _Judgement(NamedTuple):
    """The parts of a `Verification` that compare both evaluations."""

    holds: bool | None
    reason: str
    faster: bool = False


def _judge(before: Feedback, again: Feedback, tolerance: float) -> _Judgement:
    if is_infrastructure_failure(again):
        return _Judgement(None, "could not be judged here")
    problem = before.problem
    differing = condition_differences(
        {problem: [Conditions.of_feedback(before)]}, {problem: [Conditions.of_feedback(again)]}
    )
    now = f"; judged under other conditions: {differences_text(differing)}" if differing else ""
    if is_right(before) != is_right(again):
        return _Judgement(False, f"{'is not right again' if is_right(before) else 'is right now'}{now}")
    if not is_right(before):
        return _Judgement(True, "fails again" if before.failure == again.failure else "fails again, in another way")
    if before.timing is None or again.timing is None:
        return _Judgement(True, "is right again; not timed both times")
    if differing:
        return _Judgement(True, f"is right again, and speedups do not compare{now}")
    recorded, found = before.timing, again.timing
    needed = (1 - tolerance) * recorded.speedup_low
    if found.speedup_high < needed:
        return _Judgement(False, f"is slower: at most {found.speedup_high:.3g}x, expected {needed:.3g}x or more")
    if recorded.speedup_high < (1 - tolerance) * found.speedup_low:
        reason = (
            f"is right and faster than recorded: at least {found.speedup_low:.3g}x, recorded at most "
            f"{recorded.speedup_high:.3g}x"
        )
        return _Judgement(True, reason, faster=True)
    return _Judgement(True, "is right and as fast again")
