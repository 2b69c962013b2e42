"""Right kernels whose synchronisation can be taken out, one at a time: tests/candidates/{twins,cuda/twins}.

`pkb_gym.authoring.twins` explains the marks; the other first lines of a file are those of `tests.engine.candidates`. An
outcome is a Failure, on GPUs the class of the detector's finding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pkb_gym.authoring.twins import kernel_text, synchronisations, without
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
        return without(self.right.source, self.name)

    @property
    def wrong(self) -> Candidate:
        """The wrong kernel as a candidate."""
        path = self.right.path.with_stem(str(self).replace("-", "_"))
        return replace(self.right, path=path, source=self.source, outcome="|".join(self.outcome))

    def __str__(self) -> str:
        return f"{self.right.path.stem}-without-{self.name}"


def right_kernels(folder: str) -> list[Candidate]:
    """The right kernels of "twins" or "cuda/twins", which include the text of `common.cuh` beside them."""
    paths = sorted(path for path in (FOLDER / folder).iterdir() if path.suffix != ".cuh")
    return [replace(read(path), source=kernel_text(path)) for path in paths]


def twins(folder: str) -> list[Twin]:
    """Their wrong twins."""
    return [
        Twin(right, name, tuple(outcome.split("|")))
        for right in right_kernels(folder)
        for name, outcome in synchronisations(right.source).items()
    ]
