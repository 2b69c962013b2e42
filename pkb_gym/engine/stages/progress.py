"""Progress reports of a running evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
"""Function called with a few words whenever a stage begins, and when an evaluation has to wait (`WAITING`)."""

WAITING = "waiting for its turn"
"""State of an evaluation that waits for a processor to compile on, or for the devices."""

PREPARING = "preparing ranks"
"""State of an evaluation that has just been given the devices."""

BUILDING = "compiling the emulator, once for this machine (minutes)"
"""State of the first evaluation on emulated GPUs."""

CHECKING_RACES = "waiting for the race detector"
"""State of an evaluation on GPUs whose emulated run takes longer than everything else."""

UNDER_GSAN = "calls under Triton's GSan"
"""State of an evaluation on GPUs whose stages a Triton source has passed."""
