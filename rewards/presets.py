"""Rewards by name, and for those that are published, the paper and its formula.

    name              value of a submission
    default           ladder, then performance; turns are paid what they add to the best so far, or a penalty
    per_turn          the same value, paid for every submission anew
    correctness_only  [right]
    fast_p:P          [right and speedup > P], for example fast_p:1.0 or fast_p(1.0)
    kernelbench       [right and speedup > 1]
    kevin             0.3 * [right] + speedup * [right]
    dr_kernel         [right] * (1 + min(3, speedup))
    cuda_agent        -1 wrong, 1 right, 2 and 3 for beating baselines by 5 %
    roofline_only     [right] * roofline_us / candidate_us

module:function is a reward of the user's, see `user_rewards`.

NAME@BASELINE is the same over another baseline: kevin@better, default@eager, fast_p:1.5@captured. By themselves the
default and per_turn take the better baseline, published rewards the eager one.

What is paid rests on what the evaluator itself has seen:

- A speedup is the lower end of its interval, where the papers take the measured one: noise paid copies of the baseline.
- No preset pays for a profile, which ranks report and a candidate can forge. Dr. Kernel adds the share of the time in
  own kernels; add `OwnKernelShare` yourself, with a small weight, where the policy is to be trusted.
- No preset looks at by what means data moves. A submission that calls the baseline's collectives, openly or not, is
  paid by the clock like any other: value 1 of the default is the baseline's own speed. `OwnCommunication` is the
  condition for paying only those that are not seen to call them: `reward.where(OwnCommunication())`.

`recipes` adds what the papers make of a turn's value over an episode and a group.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import get_args

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.engine.support.user_objects import is_reference
from pkb_gym.rewards.baseline import Baseline, with_baseline
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.milestones import Milestones
from pkb_gym.rewards.records import from_json
from pkb_gym.rewards.reward import Reward
from pkb_gym.rewards.roofline import Utilisation
from pkb_gym.rewards.shaping import BestSoFar
from pkb_gym.rewards.simple import Correctness, FastP
from pkb_gym.rewards.speedup import Speedup
from pkb_gym.rewards.user_rewards import checked_reward, load_reward

PRESETS: dict[str, Reward] = {
    "default": BestSoFar(LadderThenPerformance()),
    "per_turn": LadderThenPerformance(),
    "correctness_only": Correctness(),
    "kernelbench": FastP(1.0, estimate="low"),
    "kevin": 0.3 * Correctness() + Speedup(estimate="low"),
    "dr_kernel": Correctness() + Speedup(estimate="low", cap=3.0),
    "cuda_agent": Milestones(margin=0.05, estimate="low"),
    "roofline_only": Utilisation(),
}
"""Reward by name."""

FAMILIES: dict[str, Callable[[float], Reward]] = {"fast_p": partial(FastP, estimate="low")}
"""Maker of a reward from a number, by name; written name:number or name(number)."""


def find_reward(reward: str | Reward) -> Reward:
    """The reward of that name, of that record (see `records`) or at `module:function`.

    Args:
        reward: One of these as text, or a reward, which is tried (see `user_rewards`) and returned as it is.

    Raises:
        ConfigError: There is no such reward, and the message names the nearest; or the object is no reward.

    Example:
        >>> find_reward("fast_p:2.0")
        FastP(p=2.0, estimate='low', baseline='eager')
        >>> find_reward("kevin@better")
        0.3 * Correctness() + Speedup(estimate='low', cap=1000.0, baseline='better')
    """
    if not isinstance(reward, str):
        return checked_reward(reward)
    if reward in PRESETS:
        return PRESETS[reward]
    if reward.lstrip().startswith("{"):
        return from_json(reward)
    name, at, baseline = reward.rpartition("@")
    if at:
        return _over(name, baseline)
    called = re.fullmatch(r"(\w+)(?::(.*)|\((.*)\))", reward)
    if called and called[1] in FAMILIES:
        try:
            return FAMILIES[called[1]](float(called[2] or called[3] or ""))
        except ValueError as error:
            raise ConfigError(f"reward {reward!r}: {error}") from None
    if is_reference(reward):
        return load_reward(reward)
    known = [*PRESETS, *(f"{name}:1.0" for name in FAMILIES)]
    raise ConfigError(
        f"no reward {reward!r}.{did_you_mean(reward, known)} There are {', '.join(known)}, and module:function."
    )


def _over(name: str, baseline: str) -> Reward:
    """The reward of a name over another baseline."""
    known = get_args(Baseline)
    if baseline not in known:
        raise ConfigError(f"reward '{name}@{baseline}': no baseline {baseline!r}; there are {', '.join(known)}")
    found = find_reward(name)
    if not isinstance(found, Recorded):
        raise ConfigError(
            f"reward '{name}@{baseline}': {name} is a function, which decides itself what it compares with"
        )
    return with_baseline(found, baseline)  # type: ignore[arg-type]  # it is one of those known
