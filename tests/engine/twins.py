"""Right kernels whose synchronisation can be taken out, one at a time: tests/candidates/{twins,cuda/twins}.

Lines that end in the comment `sync: NAME` are a synchronisation; the wrong twin of a kernel is it without those of one
name. The first lines of a file are those of `tests.engine.candidates`, and for each name

    without NAME: <outcome>    a Failure (several between |), on GPUs the class of the detector's finding
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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

    @property
    def wrong(self) -> Candidate:
        """The wrong kernel as a candidate."""
        path = self.right.path.with_stem(str(self).replace("-", "_"))
        return replace(self.right, path=path, source=self.source, outcome="|".join(self.outcome))

    def __str__(self) -> str:
        return f"{self.right.path.stem}-without-{self.name}"


def right_kernels(folder: str) -> list[Candidate]:
    """The right kernels of "twins" or "cuda/twins", which include the text of `common.cuh` beside them."""
    paths = sorted((FOLDER / folder).iterdir())
    common = {f'#include "{path.name}"\n': path.read_text(encoding="utf-8") for path in paths if path.suffix == ".cuh"}
    kernels = [read(path) for path in paths if path.suffix != ".cuh"]
    for include, text in common.items():
        kernels = [replace(kernel, source=kernel.source.replace(include, text)) for kernel in kernels]
    return kernels


def twins(folder: str) -> list[Twin]:
    """Their wrong twins."""
    return [
        Twin(right, name, tuple(outcome.split("|")))
        for right in right_kernels(folder)
        for name, outcome in re.findall(r"^// without (\w+): (\S+)$", right.source, re.MULTILINE)
    ]
