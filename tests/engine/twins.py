"""Right kernels whose synchronisation can be taken out, one at a time: tests/candidates/{twins,cuda/twins}.

Lines that end in the comment `sync: NAME` are a synchronisation; the wrong twin of a kernel is it without those of one
name. The first lines of a file are those of `tests.engine.candidates`, and for each name

    without NAME: <outcome>    a Failure (several between |), on GPUs the class of the detector's finding
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.engine.candidates import FOLDER, Candidate, read


@dataclass(frozen=True)
class Twin:
    """A wrong kernel, and the right one that it was made from.

    Attributes:
        right: The right kernel.
        name: Name of the synchronisation that is taken out.
        outcome: Outcomes of which the wrong kernel has one.
    """

    right: Candidate
    name: str
    outcome: tuple[str, ...]

    @property
    def source(self) -> str:
        """The text of the wrong kernel, with the right one's line numbers."""
        mark = re.compile(rf"^.*// sync: {self.name}$", re.MULTILINE)
        source, count = mark.subn("", self.right.source)
        assert count, f"{self.right.name} has no synchronisation {self.name}"
        return source

    def __str__(self) -> str:
        return f"{self.right.path.stem}-without-{self.name}"


def right_kernels(folder: str) -> list[Candidate]:
    """The right kernels of "twins" or "cuda/twins"."""
    return [read(path) for path in sorted((FOLDER / folder).iterdir())]


def twins(folder: str) -> list[Twin]:
    """Their wrong twins."""
    return [
        Twin(right, name, tuple(outcome.split("|")))
        for right in right_kernels(folder)
        for name, outcome in re.findall(r"^// without (\w+): (\S+)$", right.source, re.MULTILINE)
    ]
