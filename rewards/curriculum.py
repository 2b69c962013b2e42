"""Rewards that change over a training run: from how far a kernel came to how fast it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Self

from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards import records
from pkb_gym.rewards.component import Component
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.ladder import Ladder


def right_then_performance() -> LadderThenPerformance:
    """The default without credit for what is not right: 0, or 1 + performance."""
    return LadderThenPerformance(ladder=Ladder(accepted=0.0, compiled=0.0, ran=0.0, almost=0.0))


@dataclass(frozen=True)
class Fade:
    """A schedule of rewards: one fades into another, linearly in the steps of the learner.

        r(step) = (1 - t) * early + t * late,    t = (step - begin) / (end - begin), within [0, 1]

    By default the weight moves from the ladder to performance. A policy needs partial credit until it writes its first
    right kernels; later it fades out, while performance fades in. A right kernel as fast as the baseline has value 1 at
    every step. An order that both rewards agree on, such as right above wrong, holds at every step.

    Range: that of both together. Source: a sequence of tasks from easy to hard, Bengio, Louradour, Collobert, Weston:
    Curriculum learning, ICML 2009.

    Attributes:
        begin: the last step of the early reward alone, not negative.
        end: the first step of the late reward alone, after `begin`.
        early: the reward to begin with.
        late: the reward to end with.

    Example:
        >>> from .examples import failed, timed
        >>> schedule = Fade(begin=100, end=300)
        >>> [schedule.at(step)(failed("runtime_error")) for step in (0, 200, 400)]
        [0.2, 0.1, 0.0]
        >>> [schedule.at(step)(timed(roofline_us=25, speedup_low=2.0)) for step in (0, 200, 400)]
        [1.0, 1.25, 1.5]
    """

    begin: int
    end: int
    early: Component = field(default_factory=Ladder)
    late: Component = field(default_factory=right_then_performance)

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ValueError(f"0 <= begin < end is needed, got {self.begin} and {self.end}")

    def share(self, step: int) -> float:
        """Weight of the late reward, in [0, 1]."""
        return min(1.0, max(0.0, (step - self.begin) / (self.end - self.begin)))

    def at(self, step: int) -> Component:
        """The reward of that step, which can be recorded like any other."""
        share = self.share(step)
        if share in (0.0, 1.0):
            return self.late if share else self.early
        return (1 - share) * self.early + share * self.late

    def to_json(self) -> str:
        """The record of the schedule, on one line: both steps, and both rewards as `records` has them."""
        rewards = {name: json.loads(records.to_json(getattr(self, name))) for name in ("early", "late")}
        return json.dumps({"begin": self.begin, "end": self.end} | rewards)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The schedule of a record.

        Raises:
            ConfigError: it is no such record.

        Example:
            >>> Fade.from_json(Fade(begin=0, end=1000).to_json()) == Fade(begin=0, end=1000)
            True
        """
        try:
            content: Any = json.loads(text) if len(text) <= 2 * records.MAX_CHARS else None
            begin, end = content["begin"], content["end"]
            early, late = (json.dumps(content[name]) for name in ("early", "late"))
        except (ValueError, RecursionError, KeyError, TypeError):
            raise ConfigError(
                'a schedule\'s record is {"begin": step, "end": step, "early": ..., "late": ...}'
            ) from None
        if type(begin) is not int or type(end) is not int:
            raise ConfigError(f"begin and end are whole numbers of steps, got {begin!r} and {end!r}")
        try:
            return cls(begin, end, _component(early), _component(late))
        except ValueError as error:
            raise ConfigError(f"a schedule's record: {error}") from None


def _component(text: str) -> Component:
    reward = records.from_json(text)
    if not isinstance(reward, Component):
        raise ConfigError(f"a schedule fades one component into another, got a {type(reward).__name__}")
    return reward
