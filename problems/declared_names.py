"""The names of this package's problems, read from the text of their files: nothing is imported.

Importing the catalogue takes long and loads pydantic; a test compares these names with the catalogue's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROBLEMS = Path(__file__).resolve().parent

_DECLARATION = re.compile(r'^PROBLEM = Problem\(\s*name="(\w+)",[^\n]*\s*upstream="(\w+)"', re.MULTILINE)


@dataclass(frozen=True)
class DeclaredNames:
    """The names of one problem.

    Attributes:
        name: CamelCase, of the environment.
        folder: its snake case.
        upstream: file stem in ParallelKernelBench.
    """

    name: str
    folder: str
    upstream: str

    @property
    def env_id(self) -> str:
        """Of the environment."""
        return f"PKB/{self.name}-v0"

    def other_spellings(self) -> Iterator[str]:
        """Ids that `find_problem` would understand, and lower case, each with the version that is the default."""
        yield f"{self.name}-v0"
        for alias in dict.fromkeys((self.folder, self.upstream, self.name.lower())):
            yield f"{alias}-v0"
            yield f"PKB/{alias}-v0"


def declared_names(folder: Path = PROBLEMS) -> list[DeclaredNames]:
    """What the files `<category>/<problem>/problem.py` declare, sorted by name."""
    texts = ((path.parent.name, path.read_text(encoding="utf-8")) for path in folder.glob("*/*/problem.py"))
    found = [
        DeclaredNames(declared[1], name, declared[2]) for name, text in texts if (declared := _DECLARATION.search(text))
    ]
    return sorted(found, key=lambda names: names.name)
