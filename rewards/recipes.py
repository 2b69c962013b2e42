"""Published ways from rewards to advantages: value of a turn, credit over its episode, comparison in its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards.advantages import Advantages, Group, group_relative, leave_one_out
from pkb_gym.rewards.returns import (
    KEVIN_GAMMA,
    Values,
    best_of_episode,
    discounted_sum,
    improvement_only,
    last_of_episode,
)


@dataclass(frozen=True)
class Recipe:
    """The way from the feedback of a group of episodes to an advantage of each turn.

    Attributes:
        reward: Name of the preset that values one submission.
        returns: Function from the values of an episode to the credit of each turn.
        advantages: Function from the credits of all episodes of a problem to the advantage of each turn.
        source: Paper, with the parts that are this project's own.

    Example:
        >>> recipe = find_recipe("default")
        >>> values = [[0.0, 1.0], [1.0, None]]
        >>> recipe.advantages([recipe.returns(episode) for episode in values])
        [[-1.0, 0.0], [1.0, None]]
    """

    reward: str
    returns: Callable[[Values], list[float | None]]
    advantages: Callable[[Group], Advantages]
    source: str


RECIPES: dict[str, Recipe] = {
    "default": Recipe("default", improvement_only, leave_one_out, "own; Ng, Harada, Russell, ICML 1999, and RLOO"),
    "kernelbench": Recipe(
        "kernelbench",
        best_of_episode,
        leave_one_out,
        "Ouyang et al., KernelBench, arXiv:2502.10517, section 3.3: fast_1, a metric, of the best attempt; the "
        "credit and comparison are this project's",
    ),
    "kevin": Recipe(
        "kevin",
        partial(discounted_sum, gamma=KEVIN_GAMMA),
        partial(group_relative, over="group"),
        "Baronio et al., Kevin, arXiv:2507.11948, section 3.2: 0.3 for being right plus the speedup, summed over later "
        "turns with gamma 0.4, normalised over all turns of all trajectories of a problem; that the lower end of the "
        "speedup counts, and its cap, are this project's",
    ),
    "dr_kernel": Recipe(
        "dr_kernel",
        partial(discounted_sum, gamma=1.0),
        leave_one_out,
        "Liu et al., Dr. Kernel, arXiv:2602.05885: being right and the speedup; advantages leave one out, turn by turn "
        "(TRLOO). As others describe it (daVinci-kernel, arXiv:2606.16497, equation 1) the share of the time in "
        "generated kernels is added with the same weight, and the speedup is cut at 3. That share is left out, since a "
        "candidate's own process reports it; the paper's own equation and discount could not be confirmed",
    ),
    "cuda_agent": Recipe(
        "cuda_agent",
        last_of_episode,
        partial(group_relative, normalise=False, over="group"),
        "Dai et al., CUDA Agent, arXiv:2602.24286, section 3.2, equation 1: milestones, paid for the outcome. Its "
        "learner is PPO with a critic: the mean in its place is this project's, and so is the second baseline "
        "(`Milestones`)",
    ),
}
"""Recipe by name."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ConfigError: There is no such recipe.

    Example:
        >>> find_recipe("kevin").reward
        'kevin'
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]
