"""Attempts whose timing did not converge."""

from __future__ import annotations

from pkb_gym.engine.records.attempt import Attempt
from tests.metrics.attempts import attempt


def loose(*words: str, **fields: object) -> Attempt:
    """As `attempt` with a speedup, whose interval did not become tight."""
    made = attempt(*words, **fields)
    assert made.feedback is not None and made.feedback.timing is not None
    timing = made.feedback.timing.model_copy(update={"converged": False})
    return made.model_copy(update={"feedback": made.feedback.model_copy(update={"timing": timing})})
