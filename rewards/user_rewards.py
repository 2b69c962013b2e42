"""Rewards that users bring: found by `module:function`, tried when they are given, checked whenever they are called.

Whatever is wrong with one is a `ConfigError` that names it: a NaN or a tensor would otherwise be noticed in the middle
of a run, far from where it came from.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import cast

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.user_objects import load_object
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.reward import Reward


def load_reward(reference: str) -> Reward:
    """Imports a reward, also from the working directory, and tries it.

    Args:
        reference: Text `module:function` or `module:object`, for example "my_rewards:squared_speedup".

    Raises:
        ConfigError: There is no such module or function, or it is no reward.
    """
    return checked_reward(load_object(reference, "reward"))


def checked_reward(reward: object) -> Reward:
    """The reward itself, once it was tried: pickled, and called on records of a wrong and of a right kernel.

    Raises:
        ConfigError: The object is no function from a `Feedback` to a finite number or None, or cannot be pickled.
    """
    if isinstance(reward, type):
        raise ConfigError(f"reward {reward.__name__} is a class; give an instance: {reward.__name__}(...)")
    if not callable(reward):
        raise ConfigError(f"a reward is a name, module:function, or a function of one Feedback; got {reward!r}")
    try:
        pickle.dumps(reward)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"reward {name_of(reward)} cannot be pickled ({error}); define it at the top level of a module"
        ) from None
    given = cast(Reward, reward)
    for example in (failed("compile_error"), timed(speedup=2.0)):
        value_of(given, example, "an example Feedback")
    return given


def value_of(reward: Reward, feedback: Feedback, which: str | None = None) -> float | None:
    """The value of one submission, as a plain float.

    Args:
        reward: Reward to call.
        feedback: Record of the submission's evaluation.
        which: Name of that feedback in errors; by default that of its problem.

    Raises:
        ConfigError: The reward failed, or returned neither a finite number nor None.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> value_of(Correctness(), timed(speedup=2.0))
        1.0
    """
    try:
        value = reward(feedback)
    except ConfigError:  # of a reward that this one is made of
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        which = which or f"a Feedback of {feedback.problem}"
        raise ConfigError(f"reward {name_of(reward)} failed on {which}: {what}") from error
    return checked_value(reward, value)


def checked_value(reward: Reward, value: object) -> float | None:
    """The value that a reward returned, as a plain float.

    Raises:
        ConfigError: The value is neither a finite number nor None.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> checked_value(Correctness(), True)
        1.0
        >>> checked_value(Correctness(), float("nan"))
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: reward Correctness() returned nan; expected a finite number or None
    """
    if value is None:
        return None
    if not isinstance(value, Real):
        hint = "; call .item() on tensors" if hasattr(value, "item") else ""
        kind = f"{type(value).__name__} {value!r}"
        raise ConfigError(f"reward {name_of(reward)} returned {kind}; expected a finite number or None{hint}")
    if not isfinite(value):
        raise ConfigError(f"reward {name_of(reward)} returned {float(value)}; expected a finite number or None")
    return float(value)


def checked_parts(reward: Reward, parts: Mapping[str, float]) -> dict[str, float]:
    """The parts that a reward returns, as plain floats.

    Raises:
        ConfigError: A part is no finite number.
    """
    found = {name: checked_value(reward, part) for name, part in parts.items()}
    return {name: part for name, part in found.items() if part is not None}


def name_of(reward: object) -> str:
    """A function by its module and name, an object as it prints."""
    name, module = getattr(reward, "__qualname__", None), getattr(reward, "__module__", None)
    return f"{module}.{name}" if name else repr(reward)
