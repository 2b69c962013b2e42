"""A search without a model: kernels of the corpus's families, bred by what was found of them.

    population   the submissions of the episode so far, with the value that their feedback earned
    parents      the best `elite` of them
    child        with probability `crossover` each knob from one of two parents, else one parent; then `mutations` knobs
                 take a neighbouring value, a random one where there is no order between them

A child that was submitted before, or that makes no sense, is drawn again. The first `initial` submissions are random,
the plainest kernel first. Equal seeds and equal findings give equal searches.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import Agent, AgentProvider, AgentTask, Message, NotCovered, Reply, Setting
from pkb_gym.corpus.families import FAMILIES, Family
from pkb_gym.corpus.families.family import Knob, Knobs, Variant
from pkb_gym.engine.records.base import Record

LANGUAGE = {"cpu": "cpp", "cuda": "cuda"}
"""Device -> language of its families."""

TRIES = 200
"""Children that are drawn before one of the untried kernels is taken instead."""


class EvolveOptions(Record):
    """Options of the search."""

    initial: int = Field(default=3, ge=1)
    """Submissions that are drawn at random."""
    elite: int = Field(default=3, ge=1)
    """Best submissions that are bred from."""
    crossover: float = Field(default=0.5, ge=0, le=1)
    """Probability that a child has two parents."""
    mutations: int = Field(default=1, ge=1)
    """Knobs of a child that are changed, at most."""


@dataclass(frozen=True)
class EvolveProvider:
    """Searches, one for each episode."""

    options: EvolveOptions

    @property
    def settings(self) -> Mapping[str, Setting]:
        """See `AgentProvider`."""
        return self.options.model_dump()

    def begin(self, task: AgentTask) -> Agent:
        """See `AgentProvider`."""
        key = (task.problem.name, LANGUAGE[task.config.device])
        if key not in FAMILIES:
            raise NotCovered(f"there is no family of {key[1]} kernels for {task.problem.name}")
        return EvolveAgent(FAMILIES[key], self.options, task.seed)

    def close(self) -> None:
        """Nothing was started."""


def open_provider(_argument: str, options: Mapping[str, str]) -> AgentProvider:
    """See `registry.open_agent`."""
    return EvolveProvider(parse_options("evolve", EvolveOptions, options))


@dataclass(frozen=True)
class EvolveAgent:
    """The search of one episode.

    Attributes:
        family: that is searched.
        options: of the search.
        seed: of all that is drawn.
    """

    family: Family
    options: EvolveOptions
    seed: int

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """Submits the next kernel; None when the whole family has been submitted."""
        variants = {variant.source: variant for variant in self.family.variants}
        turns = [message.turn for message in messages if message.turn is not None]
        tried = {turn.source for turn in turns}
        untried = [variant for source, variant in variants.items() if source not in tried]
        if not untried:
            return None
        draw = random.Random(f"{self.seed} {len(turns)}")
        judged = [(turn.value, variants[turn.source]) for turn in turns if turn.value is not None]
        if not turns:
            child = untried[0]
        elif len(turns) < self.options.initial or not judged:
            child = draw.choice(untried)
        else:
            parents = [variant for _, variant in sorted(judged, key=lambda pair: -pair[0])[: self.options.elite]]
            child = self._child(parents, tried, draw) or draw.choice(untried)
        return Reply(child.name, submission=child.source)

    def _child(self, parents: Sequence[Variant], tried: set[str], draw: random.Random) -> Variant | None:
        """One that was not submitted yet; None where none is found."""
        variants = {_values(variant.knobs): variant for variant in self.family.variants}
        for _ in range(TRIES):
            knobs = self._mutated(self._crossed(parents, draw), draw)
            child = variants.get(_values(knobs))
            if child is not None and child.source not in tried:
                return child
        return None

    def _crossed(self, parents: Sequence[Variant], draw: random.Random) -> Knobs:
        # The better ones are drawn more often: of two the first, as parents come in the order of their values.
        first = min(draw.randrange(len(parents)), draw.randrange(len(parents)))
        if len(parents) == 1 or draw.random() >= self.options.crossover:
            return parents[first].knobs
        second = draw.choice([number for number in range(len(parents)) if number != first])
        pair = (parents[first].knobs, parents[second].knobs)
        return {knob: draw.choice(pair)[knob] for knob in self.family.choices}

    def _mutated(self, knobs: Knobs, draw: random.Random) -> Knobs:
        movable = [knob for knob, values in self.family.choices.items() if len(values) > 1]
        changed = draw.sample(movable, min(len(movable), draw.randint(1, self.options.mutations)))
        return {**knobs, **{knob: _neighbour(self.family.choices[knob], knobs[knob], draw) for knob in changed}}


def _neighbour(values: Sequence[Knob], value: Knob, draw: random.Random) -> Knob:
    """The next larger or smaller number; of words any other."""
    others = [other for other in values if other != value]
    if not all(isinstance(other, int) for other in values):
        return draw.choice(others)
    ordered = sorted(values, key=int)
    place = ordered.index(value)
    return draw.choice([ordered[near] for near in (place - 1, place + 1) if 0 <= near < len(ordered)])


def _values(knobs: Knobs) -> tuple[Knob, ...]:
    return tuple(knobs[name] for name in sorted(knobs))
