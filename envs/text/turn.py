"""The message to a model that follows a submission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from pkb_gym.envs.text.formatting import cut_middle

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


def shortened(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    r"""A message of at most so many tokens that keeps the turn, the verdict and the best submission so far.

    What stands between them, as the compiler's log, is cut in its middle. Where even these are too long, the end of
    the verdict is lost first.

    Args:
        text: Message to a model.
        max_tokens: Greatest number of tokens, at least 1.
        count: Function that counts the tokens of a text.

    Example:
        >>> text = "Turn 1\n\nFAILED: compile_error.\n\n" + "a" * 99 + "\n\nNo submission counts yet."
        >>> print(shortened(text, 100, len))
        Turn 1
        <BLANKLINE>
        FAILED: compile_error.
        <BLANKLINE>
        aaaa
        [... 92 characters left out ...]
        aaa
        <BLANKLINE>
        No submission counts yet.
    """
    if count(text) <= max_tokens:
        return text
    paragraphs = text.split("\n\n")  # quoted lines stand behind a bar, so that none of them is empty
    begin = 2 if text.startswith("Turn ") and len(paragraphs) > 2 else 1
    head, tail = paragraphs[:begin], paragraphs[begin:][-1:]
    middle = "\n\n".join(paragraphs[begin:-1])

    def with_middle(chars: int) -> str:
        return "\n\n".join([*head, cut_middle(middle, chars).strip("\n"), *tail])

    least = len(f"\n[... {len(middle)} characters left out ...]\n") + 2
    if middle and count(with_middle(least)) <= max_tokens:
        return with_middle(_most(least, len(middle), lambda chars: count(with_middle(chars)) <= max_tokens))
    whole = "\n\n".join([*head, *tail])
    if count(whole) <= max_tokens:
        return whole
    lead = "\n\n".join(head)
    return lead[: _most(1, len(lead), lambda chars: count(lead[:chars]) <= max_tokens)]


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The greatest number from `low` to `high` that fits, by bisection; `low` where none does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
