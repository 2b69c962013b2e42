"""The protocol of a reward: a function from one `Feedback` to a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pkb_gym.engine.records.feedback import Failure, Feedback


class Reward(Protocol):
    """Values one submission. Rewards are picklable and keep no state between calls."""

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission.

        Args:
            feedback: Record of its evaluation.

        Returns:
            A finite number; None where nothing is to be learnt from it (`is_infrastructure_failure`).
        """


@runtime_checkable
class ItemisedReward(Reward, Protocol):
    """A reward that can list its parts."""

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """Named summands of the value; empty where the fault was ours."""


def is_infrastructure_failure(feedback: Feedback) -> bool:
    """Whether the candidate is not why it was not judged: the machine failed, has no GPU, or made a debug build."""
    return feedback.config.debug or feedback.failure in (Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY)


def was_only_compiled(feedback: Feedback) -> bool:
    """Whether it compiled and this machine has no GPU that could run it."""
    return feedback.failure is Failure.COMPILED_ONLY


def is_caught(feedback: Feedback) -> bool:
    """Whether something was found that no honest kernel does."""
    return feedback.failure is Failure.INTEGRITY or bool(feedback.integrity)


def is_breach(feedback: Feedback) -> bool:
    """Whether it broke the rules: by a race, which breaks the call contract, or by what no honest kernel does."""
    return feedback.failure is Failure.RACE or is_caught(feedback)


def is_right(feedback: Feedback) -> bool:
    """Whether every check passed and nothing failed afterwards, not even while it was timed or profiled."""
    return feedback.is_correct and feedback.failure is None and not feedback.integrity
