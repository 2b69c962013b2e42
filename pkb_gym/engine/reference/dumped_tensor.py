"""Names a tensor that is written to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Dumped:
    """One tensor of one rank in one call.

    Attributes:
        trial: Trial of the call.
        name: Name of an output, or of an argument that should be as it was.
    """

    trial: int
    name: str

    def path(self, folder: Path, rank: int, which: str) -> Path:
        """The path of the file; `which` is "got" or "expected"."""
        return folder / f"trial{self.trial}-rank{rank}-{self.name}-{which}.npy"
