"""Samplers of `PKB/Suite-v0`: the next problem at random, or where something is being learnt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.suggestions import did_you_mean


@runtime_checkable
class Sampler(Protocol):
    """Draws the problem of each episode. Samplers are picklable, what they have learnt included."""

    def choose(self, names: Sequence[str], rng: np.random.Generator) -> str:
        """One of the names; the same generator and the same updates before give the same one.

        Args:
            names: Names of the problems to draw from, at least one.
            rng: Generator of all randomness.
        """

    def update(self, name: str, reward: float) -> None:
        """Learns from an episode that ended.

        Args:
            name: Name of the problem, which need not be one of those to draw from.
            reward: Value of its best submission, a finite number.
        """


@dataclass(frozen=True)
class Uniform:
    """Every problem equally often, whatever its rewards.

    Example:
        >>> Uniform().choose(["AllReduce", "HyenaCP"], np.random.default_rng(1))
        'AllReduce'
    """

    def choose(self, names: Sequence[str], rng: np.random.Generator) -> str:
        """One of the names, each equally likely."""
        return names[int(rng.integers(len(names)))]

    def update(self, name: str, reward: float) -> None:
        """Ignores the reward."""


@dataclass
class LearningProgress:
    """Problems more often whose rewards are changing, up or down.

        fast <- fast + fast_rate * (reward - fast),    slow <- slow + slow_rate * (reward - slow),    both from 0
        progress = |fast - slow|
        p(problem) = floor / n + (1 - floor) * progress / (sum of the n problems' progress)

    Rewards that rise are being learnt; those that fall are being forgotten and want practice again; problems that are
    always or never solved teach nothing. The floor keeps sampling those too, since that may change. Where nothing
    moves, as before the first episode, all are drawn equally often.

    Source: learning progress by the absolute slope of the learning curve, Matiisen, Oliver, Cohen, Schulman:
    Teacher-Student Curriculum Learning, 2017, and Portelas, Colas, Hofmann, Oudeyer: Teacher algorithms for curriculum
    learning of deep RL in continuously parameterized environments (ALP-GMM), CoRL 2019, from which the share of uniform
    exploration; as the difference of two moving averages, Kanitscheider et al.: Multi-task curriculum learning in a
    complex, visual, hard-exploration domain: Minecraft, 2021.

    Attributes:
        fast_rate: Weight of a new reward in the fast average, in (slow_rate, 1].
        slow_rate: Weight in the slow average, in (0, fast_rate).
        floor: Share of draws that are uniform, in [0, 1].
        averages: Fast and slow average by problem, of problems that were updated.

    Example:
        >>> sampler = LearningProgress(floor=0.2)
        >>> sampler.update("HyenaCP", 1.0)
        >>> [round(float(p), 3) for p in sampler.probabilities(["AllReduce", "HyenaCP"])]
        [0.1, 0.9]
    """

    fast_rate: float = 0.3
    slow_rate: float = 0.1
    floor: float = 0.2
    averages: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.slow_rate < self.fast_rate <= 1:
            raise ConfigError(f"0 < slow_rate < fast_rate <= 1 is needed, got {self.slow_rate} and {self.fast_rate}")
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor is a share of the draws, 0 to 1, got {self.floor}")

    def progress(self, name: str) -> float:
        """The change in a problem's rewards; 0 before the first."""
        fast, slow = self.averages.get(name, (0.0, 0.0))
        return abs(fast - slow)

    def probabilities(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The probability of each name to be drawn next; they add up to 1."""
        progress = np.array([self.progress(name) for name in names])
        uniform = np.full(len(names), 1 / len(names))
        most = progress.max()
        if most <= 0:
            return uniform
        progress /= most  # or the sum of very small ones would lose their ratio
        shares: NDArray[np.float64] = self.floor * uniform + (1 - self.floor) * progress / progress.sum()
        return shares

    def choose(self, names: Sequence[str], rng: np.random.Generator) -> str:
        """One of the names, by `probabilities`; takes one number from the generator, whatever was learnt."""
        bounds = np.cumsum(self.probabilities(names))
        return names[min(int(np.searchsorted(bounds, rng.random(), side="right")), len(names) - 1)]

    def update(self, name: str, reward: float) -> None:
        """Updates both averages of a problem.

        Raises:
            ValueError: The reward is not finite.
        """
        if not isfinite(reward):
            raise ValueError(f"{name}: a reward must be finite, got {reward}")
        fast, slow = self.averages.get(name, (0.0, 0.0))
        self.averages[name] = (fast + self.fast_rate * (reward - fast), slow + self.slow_rate * (reward - slow))


SamplerLike: TypeAlias = "str | Mapping[str, object] | Sampler"

SAMPLERS: dict[str, Callable[..., Sampler]] = {"uniform": Uniform, "learning_progress": LearningProgress}
"""Sampler by name."""


def find_sampler(sampler: SamplerLike) -> Sampler:
    """A new sampler of that name; an object is handed back as it is.

    Args:
        sampler: Name, mapping of "name" and the sampler's parameters (which JSON can hold), or object.

    Raises:
        ConfigError: There is no such sampler, or it does not take those parameters.

    Example:
        >>> find_sampler({"name": "learning_progress", "floor": 0.5}).floor
        0.5
    """
    if isinstance(sampler, str):
        return find_sampler({"name": sampler})
    if isinstance(sampler, Mapping):
        name = sampler.get("name")
        if not isinstance(name, str) or name not in SAMPLERS:
            raise ConfigError(f"no sampler {name!r}.{did_you_mean(name, SAMPLERS)} There are {', '.join(SAMPLERS)}.")
        try:
            return SAMPLERS[name](**{key: value for key, value in sampler.items() if key != "name"})
        except TypeError as error:
            raise ConfigError(f"sampler {name!r}: {error}") from None
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise ConfigError(f"a sampler is a name, a mapping or an object with choose and update, got {sampler!r}")
    return sampler


def sampler_mapping(sampler: object) -> dict[str, object] | None:
    """The mapping that `find_sampler` makes an equal sampler of; None for what is none of `SAMPLERS`.

    Example:
        >>> sampler_mapping(LearningProgress(floor=0.5))["floor"]
        0.5
    """
    name = next((name for name, kind in SAMPLERS.items() if type(sampler) is kind), None)
    if name is None:
        return None
    parameters: dict[str, object] = json.loads(json.dumps(vars(sampler)))  # in its own types, to be equal afterwards
    return {"name": name} | parameters
