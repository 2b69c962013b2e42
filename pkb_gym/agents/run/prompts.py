"""Prompts of agents, apart from the task text and the feedback."""

from __future__ import annotations

from pkb_gym.agents.protocol import SUBMIT
from pkb_gym.envs.text.turn import Style

SYSTEM = (
    "You are an expert in parallel programming who writes fast multi-rank kernels. Submit one complete source "
    f"file, in a fenced block of code or, where you have it, with the tool `{SUBMIT}`. It is compiled, run on all "
    "ranks, checked against the reference and timed against the baseline."
)
BRIEF_SYSTEM = "Submit a kernel in a fenced block of code."

FURTHER = " What was found comes back, and you may submit up to {turns} sources: first right, then faster."


def system_text(style: Style, turns: int) -> str:
    """The system's message.

    Args:
        style: Length of task and feedback.
        turns: Number of replies of the episode.
    """
    return (BRIEF_SYSTEM if style == "brief" else SYSTEM) + (FURTHER.format(turns=turns) if turns > 1 else "")


def unread_text(why: str) -> str:
    """The answer to a reply without a readable submission."""
    return f"No submission could be read, {why}. Submit one complete source file in a fenced block of code."
