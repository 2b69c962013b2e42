"""The names of this package's problems, read from the text of their files: nothing of a problem is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.support.declaration_text import read_declaration

PROBLEMS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class DeclaredNames:
    """The names of one problem.

    Attributes:
        name: CamelCase, of the environment.
        path: Path of the folder.
        upstream: File stem in ParallelKernelBench.
    """

    name: str
    path: Path
    upstream: str

    @property
    def folder(self) -> str:
        """The name in snake case."""
        return self.path.name

    @property
    def env_id(self) -> str:
        """The id of the environment."""
        return f"PKB/{self.name}-v0"

    def aliases(self) -> tuple[str, str, str]:
        """The names by which the problem is found."""
        return self.name, self.folder, self.upstream

    def other_spellings(self) -> Iterator[str]:
        """Ids of no environment that mean this one, lower case included, each with the version that is the default."""
        yield f"{self.name}-v0"
        for alias in dict.fromkeys((self.folder, self.upstream, self.name.lower())):
            yield f"{alias}-v0"
            yield f"PKB/{alias}-v0"


def declared_names(folder: Path = PROBLEMS) -> list[DeclaredNames]:
    """The declarations of the files `<category>/<problem>/problem.py`, sorted by name."""
    texts = ((path.parent, path.read_text(encoding="utf-8")) for path in folder.glob("*/*/problem.py"))
    found = [
        DeclaredNames(declared.name, path, declared.upstream)
        for path, text in texts
        if (declared := read_declaration(text)) is not None and declared.upstream
    ]
    return sorted(found, key=lambda names: names.name)
