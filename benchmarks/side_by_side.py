"""Shares of a machine for programs that measure side by side: processors and temporary files of their own.

Evaluators that share a folder for temporary files take turns at timing (`pkb_gym.engine.stages.machine_sharing`): the
lock is the folder, and the folder above it the queue. Those of different shares have different folders and processors,
and wait for nobody.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.stages.machine_sharing import folder_apart


@dataclass(frozen=True)
class Share:
    """A part of the machine.

    Attributes:
        number: from 0.
        count: of all shares.
    """

    number: int
    count: int

    def processors(self) -> list[int]:
        """A run of those that this process may use; with more shares than processors, they take turns."""
        usable = sorted(os.sched_getaffinity(0))
        begin, end = (len(usable) * number // self.count for number in (self.number, self.number + 1))
        return usable[begin:end] or [usable[self.number % len(usable)]]

    def temporary_folder(self, folder: Path) -> Path:
        """Makes a folder for temporary files below one that all shares have in common; nobody else's lies beside it."""
        return folder_apart(folder / str(self.number))


def shares(count: int) -> list[Share]:
    """Shares of the whole machine."""
    return [Share(number, count) for number in range(count)]


def default_jobs(world_size: int) -> int:
    """As many as have a processor for each rank."""
    return max(1, len(os.sched_getaffinity(0)) // world_size)
