"""Rewards by name.

default            ladder, then log performance; turns are paid what they add to the best so far
per_turn           the same value, paid for every submission anew
correctness_only   1 for a right kernel, else 0
fast_p:P           1 for a right kernel with a speedup over P, else 0, for example fast_p:1.0
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.reward import Reward
from pkb_gym.rewards.shaping import BestSoFar
from pkb_gym.rewards.simple import Correctness, FastP

PRESETS: dict[str, Reward] = {
    "default": BestSoFar(LadderThenPerformance()),
    "per_turn": LadderThenPerformance(),
    "correctness_only": Correctness(),
}
"""Name -> reward."""

FAMILIES: dict[str, Callable[[float], Reward]] = {"fast_p": FastP}
"""Name -> reward for a number, written name:number."""


def find_reward(reward: str | Reward) -> Reward:
    """The reward of that name; an object is handed back as it is.

    Raises:
        ConfigError: there is none; the message names the nearest.

    Example:
        >>> find_reward("fast_p:2.0")
        FastP(p=2.0)
    """
    if not isinstance(reward, str):
        if not callable(reward):
            raise ConfigError(f"a reward is a name or a function of one Feedback, got {reward!r}")
        return reward
    if reward in PRESETS:
        return PRESETS[reward]
    family, colon, number = reward.partition(":")
    if colon and family in FAMILIES:
        try:
            return FAMILIES[family](float(number))
        except ValueError as error:
            raise ConfigError(f"reward {reward!r}: {error}") from None
    known = [*PRESETS, *(f"{name}:1.0" for name in FAMILIES)]
    near = difflib.get_close_matches(reward, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"no reward {reward!r}.{hint} There are {', '.join(known)}.")
