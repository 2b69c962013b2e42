"""One evaluation as a row of a table, or as the card that environments render."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.text.formatting import time_text

from .command import plain_table, print_uncut

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MAX_LINES = 4
MAX_CHARS = 220
COLUMNS = ("verdict", "right", "baseline", "candidate", "speedup", "of roofline", "reward")


def result_table(*first: str) -> Table:
    """An empty table: the caller's columns, those of `cells`, and the evaluator's message."""
    table = plain_table()
    for name in first:
        table.add_column(name, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="left" if name == "verdict" else "right")
    return table


def cells(feedback: Feedback, reward: float | None) -> list[Text]:
    """The cells under `COLUMNS`; empty where nothing was measured."""
    from rich.text import Text

    from pkb_gym.envs.render import verdict_colour

    timing, roofline = feedback.timing, feedback.roofline
    share = None if feedback.check is None else feedback.check.right_share
    utilisation = None if roofline is None else roofline.candidate_utilisation
    return [
        Text("passed" if feedback.passed else str(feedback.failure), style=verdict_colour(feedback)),
        Text("" if share is None else _percent(share)),
        Text("" if timing is None else time_text(timing.leading.baseline_us)),
        Text("" if timing is None else time_text(timing.candidate_us)),
        Text("" if timing is None else f"{timing.leading.speedup:.2f}x", style="bold"),
        Text("" if utilisation is None else f"{utilisation:.1%}"),
        Text("" if reward is None else f"{reward:+.2f}"),
    ]


def first_line(feedback: Feedback) -> str:
    """The first line of the evaluator's message, empty where all is well."""
    return next((line.strip() for line in feedback.message.splitlines() if line.strip()), "")


def print_reasons(console: Console, results: Iterable[tuple[str, Feedback]]) -> None:
    """For each (name, feedback) that did not pass: its failure and its message, a few lines at most."""
    for name, feedback in results:
        lines = [line.rstrip() for line in feedback.message.splitlines() if line.strip()]
        more = [f"({len(lines) - MAX_LINES} more lines)"] if len(lines) > MAX_LINES else []
        shown = [
            textwrap.shorten(line, MAX_CHARS, placeholder=" ...") if len(line) > MAX_CHARS else line
            for line in lines[:MAX_LINES]
        ]
        message = "\n    ".join([*shown, *more])
        console.print(f"  {name}: {feedback.failure}: {message}", soft_wrap=True)


def reward_of(feedback: Feedback, name: str = "default") -> float | None:
    """A reward of a first turn; None where this machine could not judge it.

    Args:
        feedback: Feedback to reward.
        name: Name of the reward, for `find_reward`.

    Raises:
        ConfigError: there is no such reward, it failed, or it returned neither a finite number nor None.
    """
    from pkb_gym.rewards import find_reward
    from pkb_gym.rewards.user_rewards import value_of

    return value_of(find_reward(name), feedback)


def print_card(console: Console, problem: Problem, feedback: Feedback, reward: str = "default") -> None:
    """The card, as `render()` of the environment shows it."""
    from pkb_gym.envs.render import card

    shown = card(problem, feedback.config, feedback, reward_of(feedback, reward))
    print_uncut(console, shown, shown.least_width)


def _percent(share: float) -> str:
    """Never 100 % for anything less than all."""
    return "100%" if share == 1 else f"{min(share, 0.9999):.2%}"
