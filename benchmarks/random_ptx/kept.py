"""Digests of what programs left in the memory of a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pkb_gym.engine.support.atomic_write import write_atomically

KEPT = Path(__file__).resolve().parent.parent / "data" / "emulated_random_digests.json"


class KeptError(Exception):
    """Digests contradict each other."""


@dataclass(frozen=True)
class Kept:
    """Digests of a GPU's results.

    Attributes:
        date: of the latest run on a GPU.
        commit: likewise.
        command: likewise.
        digests: by seed.
        unlike: seeds of programs whose results the emulator does not reproduce.
    """

    date: str
    commit: str
    command: str
    digests: Mapping[int, str]
    unlike: frozenset[int] = frozenset()

    @classmethod
    def load(cls, path: Path = KEPT) -> Kept:
        """Reads a file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        digests = {int(seed): digest for seed, digest in content["digests"].items()}
        unlike = frozenset(content.get("unlike", ()))
        return cls(content["date"], content["commit"], content["command"], digests, unlike)

    def save(self, path: Path = KEPT) -> None:
        """Writes a file."""
        content = {"date": self.date, "commit": self.commit, "command": self.command, "unlike": sorted(self.unlike)}
        digests = {str(seed): digest for seed, digest in sorted(self.digests.items())}
        write_atomically(path, json.dumps(content | {"digests": digests}, indent=0) + "\n")

    @property
    def seeds(self) -> Sequence[int]:
        """All, in order."""
        return sorted(self.digests)

    def joined(self, newer: Kept) -> Kept:
        """With the digests of a newer run; which of its programs are unlike is not known.

        Raises:
            KeptError: a program left something else in memory then.
        """
        both = self.digests.keys() & newer.digests.keys()
        changed = sorted(seed for seed in both if self.digests[seed] != newer.digests[seed])
        if changed:
            raise KeptError(f"results of {len(changed)} programs are not those kept: seeds {changed[:50]}")
        return replace(newer, digests={**self.digests, **newer.digests}, unlike=self.unlike)

    def with_emulated(self, emulated: Mapping[int, str], before: Kept) -> Kept:
        """With the programs listed as unlike whose results on the emulator are others.

        Args:
            emulated: digests of the emulator's results.
            before: the list as it was.

        Raises:
            KeptError: some programs have no result, or one that the emulator reproduced before is unlike now.
        """
        missing = sorted(self.digests.keys() - emulated.keys())
        if missing:
            raise KeptError(f"{len(missing)} programs did not run on the emulator: seeds {missing[:50]}")
        unlike = frozenset(seed for seed in self.digests if self.digests[seed] != emulated[seed])
        lost = sorted(unlike & (before.digests.keys() - before.unlike))
        if lost:
            raise KeptError(f"the emulator reproduced {len(lost)} programs before that it does not now: {lost[:50]}")
        return replace(self, unlike=unlike)
