"""A search without a model: kernels of families, bred by what was found of them.

    population   the submissions of the episode so far, with the value that their feedback earned
    parents      the best `elite` of them
    child        with probability `crossover` each knob from one of two parents, else one parent; then `mutations` knobs
                 take another value, of numbers every second time the next one
    submission   of the kernels that were not submitted yet and have the changed knobs, the nearest to the child: some
                 values make sense together with others alone, so that one change can ask for a second

The first `initial` submissions are the plainest kernel (or, with `start=random`, any) and those that differ most from
the ones before; so is, with probability `explore`, any later one. Equal seeds and equal findings give equal searches.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import Agent, AgentProvider, AgentTask, Message, NotCovered, Reply, Setting
from pkb_gym.engine.records.base import Record
from pkb_gym.kernels import FAMILIES
from pkb_gym.kernels.family import Family, Knob, Knobs, Variant

LANGUAGE = {"cpu": "cpp", "cuda": "cuda", "emulated": "cuda"}
"""Language of the kernels by device."""

FAR = 0.5
"""Share of the changes of numbers that lead to any other value."""

TRIES = 20
"""Children that are drawn before any of the untried kernels is taken: none has the changed knobs any more."""


class EvolveOptions(Record):
    """Options of the search."""

    start: Literal["plainest", "random"] = "plainest"
    """First submission; "random" makes samples of a single turn differ."""
    initial: int = Field(default=3, ge=1)
    """Submissions before the first child, as different as they come."""
    elite: int = Field(default=3, ge=1)
    """Best submissions that are bred from."""
    crossover: float = Field(default=0.5, ge=0, le=1)
    """Probability that a child has two parents."""
    explore: float = Field(default=0.1, ge=0, le=1)
    """Probability of a submission that is as different as it comes in place of a child."""
    mutations: int = Field(default=1, ge=1)
    """Knobs of a child that are changed, at most."""


@dataclass(frozen=True)
class EvolveProvider:
    """Searches, one for each episode."""

    options: EvolveOptions

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Options of the search, see `AgentProvider`."""
        return self.options.model_dump()

    def begin(self, task: AgentTask) -> Agent:
        """Begins the search of one episode, see `AgentProvider`."""
        key = (task.problem.name, LANGUAGE[task.config.device])
        if key not in FAMILIES:
            raise NotCovered(f"there is no family of {key[1]} kernels for {task.problem.name}")
        return EvolveAgent(FAMILIES[key], self.options, task.seed)

    def close(self) -> None:
        """Nothing was started."""


def open_provider(_argument: str, options: Mapping[str, str]) -> AgentProvider:
    """Opens the search without a model, see `registry.open_agent`."""
    return EvolveProvider(parse_options("evolve", EvolveOptions, options))


@dataclass(frozen=True)
class EvolveAgent:
    """The search of one episode.

    Attributes:
        family: Family that is searched.
        options: Options of the search.
        seed: Seed of all draws.
    """

    family: Family
    options: EvolveOptions
    seed: int

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """Submits the next kernel; None when the whole family has been submitted."""
        variants = {variant.source: variant for variant in self.family.variants}
        turns = [message.turn for message in messages if message.turn is not None]
        tried = [variants[turn.source] for turn in turns]
        submitted = {turn.source for turn in turns}
        untried = [variant for source, variant in variants.items() if source not in submitted]
        if not untried:
            return None
        draw = random.Random(f"{self.seed} {len(turns)}")
        judged = [(turn.value, variant) for turn, variant in zip(turns, tried, strict=True) if turn.value is not None]
        if not tried:
            chosen = untried[0] if self.options.start == "plainest" else draw.choice(untried)
        elif len(tried) < self.options.initial or not judged or draw.random() < self.options.explore:
            chosen = _farthest(untried, tried, draw)
        else:
            parents = [variant for _, variant in sorted(judged, key=lambda pair: -pair[0])[: self.options.elite]]
            chosen = self._child(parents, untried, draw)
        return Reply(chosen.name, submission=chosen.source)

    def _child(self, parents: Sequence[Variant], untried: Sequence[Variant], draw: random.Random) -> Variant:
        for _ in range(TRIES):
            crossed = self._crossed(parents, draw)
            changes = self._mutations(crossed, draw)
            fitting = [variant for variant in untried if changes.items() <= variant.knobs.items()]
            if fitting:
                return _nearest(fitting, {**crossed, **changes}, draw)
        return draw.choice(untried)

    def _crossed(self, parents: Sequence[Variant], draw: random.Random) -> Knobs:
        # The better ones are drawn more often: of two the first, as parents come in the order of their values.
        first = min(draw.randrange(len(parents)), draw.randrange(len(parents)))
        if len(parents) == 1 or draw.random() >= self.options.crossover:
            return parents[first].knobs
        second = draw.choice([number for number in range(len(parents)) if number != first])
        pair = (parents[first].knobs, parents[second].knobs)
        return {knob: draw.choice(pair)[knob] for knob in self.family.choices}

    def _mutations(self, knobs: Knobs, draw: random.Random) -> Knobs:
        """Knobs that change, with their new values."""
        movable = [knob for knob, values in self.family.choices.items() if len(values) > 1]
        changed = draw.sample(movable, min(len(movable), draw.randint(1, self.options.mutations)))
        return {knob: _other_value(self.family.choices[knob], knobs[knob], draw) for knob in changed}


def _nearest(variants: Sequence[Variant], knobs: Knobs, draw: random.Random) -> Variant:
    """The one that differs in the fewest knobs."""
    least = min(_distance(variant.knobs, knobs) for variant in variants)
    return draw.choice([variant for variant in variants if _distance(variant.knobs, knobs) == least])


def _farthest(variants: Sequence[Variant], others: Sequence[Variant], draw: random.Random) -> Variant:
    """The one whose nearest among the others is as far away as can be."""
    gaps = [min(_distance(variant.knobs, other.knobs) for other in others) for variant in variants]
    return draw.choice([variant for variant, gap in zip(variants, gaps, strict=True) if gap == max(gaps)])


def _distance(knobs: Knobs, others: Knobs) -> int:
    """Knobs that differ."""
    return sum(others[name] != value for name, value in knobs.items())


def _other_value(values: Sequence[Knob], value: Knob, draw: random.Random) -> Knob:
    """Another value of a knob: for numbers the next larger or smaller one every second time, else any."""
    others = [other for other in values if other != value]
    if not all(isinstance(other, int) for other in values) or draw.random() < FAR:
        return draw.choice(others)
    ordered = sorted(values, key=int)
    place = ordered.index(value)
    return draw.choice([ordered[near] for near in (place - 1, place + 1) if 0 <= near < len(ordered)])
