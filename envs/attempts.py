"""The record of an attempt, once its submission was judged."""

from __future__ import annotations

from pkb_gym.engine.records.attempt import Attempt, request_key
from pkb_gym.envs.episode import Turn


def judged_attempt(attempt: Attempt, turn: Turn, duration_s: float | None) -> Attempt:
    """The attempt with what was submitted and found.

    Args:
        attempt: Attempt with its agent, configuration and reply.
        turn: Submission of its episode that was read in the reply.
        duration_s: Wall time of the evaluation in seconds, waiting included; None where it was known before.
    """
    found = turn.feedback
    return attempt.model_copy(
        update={
            "request_key": None if found is None else request_key(attempt.problem, turn.source, found),
            "source": turn.source,
            "feedback": found,
            "reward": turn.value,
            "duration_s": duration_s,
        }
    )
