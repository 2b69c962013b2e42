"""A family of kernels: a text, its knobs, and the combinations of them that make sense."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Template
from typing import Literal, TypeAlias

Knob: TypeAlias = str | int
Knobs: TypeAlias = Mapping[str, Knob]


@dataclass(frozen=True)
class Variant:
    """One kernel of a family.

    Attributes:
        problem: what it solves.
        language: "cpp" or "cuda".
        knobs: the choice for each knob.
        source: its text.
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
        problem: its name.
        language: "cpp" or "cuda".
        choices: knob -> its values, the plainest first.
        render: the text for one choice of each knob.
        makes_sense: whether a combination is of use; others are left out.
    """

    problem: str
    language: Literal["cpp", "cuda"]
    choices: Mapping[str, tuple[Knob, ...]]
    render: Callable[[Knobs], str]
    makes_sense: Callable[[Knobs], bool] = lambda _: True

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination that makes sense, in a fixed order; of equal texts the first."""
        by_text: dict[str, Variant] = {}
        for values in itertools.product(*self.choices.values()):
            knobs = dict(zip(self.choices, values, strict=True))
            if self.makes_sense(knobs):
                source = self.render(knobs)
                by_text.setdefault(_squeezed(source), Variant(self.problem, self.language, knobs, source))
        return tuple(by_text.values())


def fill(template: str, **pieces: Knob) -> str:
    r"""A text with its places filled in.

    A place is `$name`. One that has a line for itself takes several lines, at its indentation, or, where there is
    nothing to put there, the line goes.

    Example:
        >>> print(fill("if (x) {\n  $body\n  $rest\n}", body="a();\nb();", rest=""))
        if (x) {
          a();
          b();
        }
    """
    lines: list[str] = []
    for line in textwrap.dedent(template).strip("\n").split("\n"):
        indent, name = line[: len(line) - len(line.lstrip())], line.strip()
        if name.startswith("$") and name[1:] in pieces:
            piece = textwrap.dedent(str(pieces[name[1:]])).strip("\n")
            lines += [indent + part if part else part for part in piece.split("\n")] if piece else []
        else:
            lines.append(Template(line).substitute(pieces))
    return "\n".join(lines)


def finish(source: str) -> str:
    """Without blank lines at the beginning, two in a row, or before a closing brace; with a line end."""
    kept: list[str] = []
    for line in source.rstrip().split("\n"):
        if not line and (not kept or not kept[-1]):
            continue
        if line.strip().startswith("}") and kept and not kept[-1]:
            kept.pop()
        kept.append(line)
    return "\n".join(kept) + "\n"


def _squeezed(source: str) -> str:
    """White space alone makes no other kernel."""
    return " ".join(source.split())
