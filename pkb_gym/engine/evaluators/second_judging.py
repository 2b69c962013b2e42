"""Failures of a candidate that its neighbours or a shortage of memory may have brought about: it is judged once more.

The second judging is alone, and decides.
"""

from __future__ import annotations

from pkb_gym.engine.errors import ReferenceOutOfMemory
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.heap_layout import lay_out

NEIGHBOURLY = (Failure.OUT_OF_MEMORY, Failure.DEADLOCK, Failure.TIMEOUT, Failure.INFRASTRUCTURE)
"""Failures that another candidate on the same GPUs can bring about: nothing limits its memory and time there."""


def may_be_a_neighbours(feedback: FeedbackBuilder) -> bool:
    """Whether another candidate may be the cause of a failure."""
    return feedback.config.device == "cuda" and feedback.had_neighbours and feedback.failure in NEIGHBOURLY


def took_the_memory(feedback: FeedbackBuilder, error: Exception) -> bool:
    """Whether a candidate may be the cause of an error: the reference gang was out of memory beside it."""
    return isinstance(error, ReferenceOutOfMemory) and feedback.has_loaded


def memory_is_free(feedback: FeedbackBuilder) -> bool:
    """Whether the device has the memory that candidate and reference gang need, as far as the driver reports it."""
    if feedback.config.device != "cuda":
        return False  # main memory is the machine's, and anybody may take it
    free = gpus.free_bytes()
    return free is None or free >= lay_out(feedback.problem, feedback.config).memory_bytes


def blame(feedback: FeedbackBuilder, error: Exception, *, was_free: bool) -> None:
    """Notes the failure of an evaluation that an error ended.

    Args:
        feedback: Feedback of the evaluation.
        error: Error of this machine.
        was_free: Whether the candidate was judged alone, and `memory_is_free` held before it was loaded.
    """
    if was_free and took_the_memory(feedback, error):
        text = f"the candidate took the memory of the GPUs, and left none for the baseline beside it: {error}"
        feedback.fail(Failure.OUT_OF_MEMORY, text)
    else:
        feedback.fail(Failure.INFRASTRUCTURE, f"this machine could not judge it: {error}")
