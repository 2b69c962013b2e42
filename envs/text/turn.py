"""The message to a model that follows a submission."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Style: TypeAlias = Literal["full", "standard", "brief"]
"""Length of a task; `task_text` says what each leaves out. Feedback is whole, or "brief": at most 300 characters."""

STYLES: tuple[Style, ...] = get_args(Style)
"""The styles, the longest first."""

DEFAULT_STYLE: Style = "standard"
"""The style where none is asked for."""


def turn_text(turn: int, feedback: str, best_turn: int, best_value: float, best_speedup: float) -> str:
    """Feedback on a submission, headed by its turn and closed by the best submission so far.

    Args:
        turn: Number of the submission, from 1.
        feedback: Feedback on it, as text.
        best_turn: Number of the best submission so far; 0 where none is valid yet.
        best_value: Value of the best submission.
        best_speedup: Speedup of the best submission; 0 if it was not timed.
    """
    standing = "No submission counts yet."
    if best_turn:
        speed = f", speedup {best_speedup:.3g}" if best_speedup > 0 else ""
        standing = f"Best so far: turn {best_turn}, value {best_value:.3g}{speed}."
    return f"Turn {turn}\n\n{feedback}\n\n{standing}"


def left_text(turns_left: int) -> str:
    """The line on the submissions that are left.

    Args:
        turns_left: Number of submissions that are still judged, at least 0.
    """
    return f"{turns_left} submission{'' if turns_left == 1 else 's'} left."
