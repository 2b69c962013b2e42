"""The number of turns that Gymnasium's `TimeLimit` leaves an environment."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import gymnasium as gym


def turn_limit(env: gym.Env[Any, Any]) -> int | None:
    """The least limit of the `TimeLimit` wrappers through which `env` was called; None where there is none.

    `gym.make` tells a limit to its wrapper alone, and wrappers know what they wrap, not the reverse. So it is read off
    the wrappers whose `reset` or `step` is under way: they are this call's callers, one around the other.

    Args:
        env: Environment whose `reset` or `step` calls this function.
    """
    limits: list[int] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self", env)  # functions without one may lie between wrappers
        if not (isinstance(caller, gym.Env) and caller.unwrapped is env):
            break
        if isinstance(caller, gym.wrappers.TimeLimit):
            limits.append(caller._max_episode_steps)
        frame = frame.f_back
    return min(limits, default=None)
