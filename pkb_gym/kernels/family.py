"""A family of kernels: a text, its knobs, and the combinations of them that make sense."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from pkb_gym.kernels.text import NativeLanguage, complete, fill

Knob: TypeAlias = str | int
Knobs: TypeAlias = Mapping[str, Knob]
Choices: TypeAlias = Mapping[str, tuple[Knob, ...] | Mapping[Knob, str]]
Pieces: TypeAlias = Mapping[str, Knob]

ORDERS: Mapping[Knob, str] = MappingProxyType(
    {"staggered": "(comm.rank + i) % W", "from 0": "i", "from last": "W - 1 - i"}
)
"""Order -> the i-th rank that a rank turns to. From 0, all turn to the same one at the same time."""


@dataclass(frozen=True)
class Variant:
    """One kernel of a family.

    Attributes:
        problem: Name of the problem that it solves.
        language: "cpp" or "cuda".
        knobs: Value of each knob.
        source: Text of the kernel.
    """

    problem: str
    language: str
    knobs: Knobs
    source: str

    @property
    def name(self) -> str:
        """The knobs as JSON."""
        return json.dumps(dict(self.knobs))


@dataclass(frozen=True)
class Family:
    """Kernels that solve one problem in one language.

    Attributes:
        problem: Name of the problem.
        language: "cpp" or "cuda".
        knobs: Values of each knob, the plainest first; a mapping gives the text of each value.
        template: Text whose places are the names of knobs and of `pieces`.
        pieces: Function from one value of each knob to the text of further places.
        makes_sense: Predicate of useful combinations of values; others are left out.
        idea: Sentence without a full stop about the plainest kernel; may be empty.
    """

    problem: str
    language: NativeLanguage
    knobs: Choices
    template: str
    pieces: Callable[[Knobs], Pieces] = lambda _: {}
    makes_sense: Callable[[Knobs], bool] = lambda _: True
    idea: str = ""

    @cached_property
    def choices(self) -> Mapping[str, tuple[Knob, ...]]:
        """Values of each knob, the plainest first."""
        return {knob: tuple(values) for knob, values in self.knobs.items()}

    def render(self, knobs: Knobs) -> str:
        """Returns the kernel for one value of each knob."""
        texts = {knob: self._text(knob, value) for knob, value in knobs.items()}
        return complete(fill(self.template, **{**texts, **self.pieces(knobs)}), self.language)

    def _text(self, knob: str, value: Knob) -> Knob:
        values = self.knobs[knob]
        if isinstance(values, Mapping):
            return values[value]
        return ORDERS.get(value, value) if knob == "order" else value

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination that makes sense, in a fixed order; of equal texts the first."""
        return tuple(self._variants(self.choices).values())

    @cached_property
    def plainest(self) -> Variant:
        """The shortest kernel, which has the fewest of the ideas that make one fast, with a plain number of threads."""
        plain = {knob: values[:1] for knob, values in self.choices.items() if knob in ("threads", "blocks")}
        # Those of one number alone, as a family has hundreds of variants.
        variants = self._variants({**self.choices, **plain}) or self._variants(self.choices)
        return min(variants.values(), key=lambda variant: len(variant.source))

    def _variants(self, choices: Mapping[str, tuple[Knob, ...]]) -> dict[str, Variant]:
        """Text without white space, which makes no other kernel -> variant."""
        by_text: dict[str, Variant] = {}
        for values in itertools.product(*choices.values()):
            knobs = dict(zip(choices, values, strict=True))
            if self.makes_sense(knobs):
                source = self.render(knobs)
                variant = Variant(self.problem, self.language, knobs, source)
                by_text.setdefault(" ".join(source.split()), variant)
        return by_text
