"""What is compared of the verdicts of evaluators."""

from __future__ import annotations

from pkb_gym.engine.records.feedback import Feedback


def verdict(feedback: Feedback) -> tuple[object, ...]:
    """What every evaluator must find alike: all but times, drawn inputs and messages that quote them."""
    checked = None if feedback.check is None else feedback.check.passed
    found = (feedback.failure, feedback.stage, feedback.failed_rank, checked, feedback.timing is not None)
    return (*found, feedback.config, feedback.environment, feedback.source_sha256, feedback.problem_sha256)
