"""Traffic through the caches before a baseline's block, as the staging of inputs causes it before a candidate's.

Between the gate and the first call of a candidate's block, the reference ranks work on its processors: they write its
inputs. Its code and data have left the caches by then. On the CPU, a baseline that goes on at once is some percent
faster than the same work in a candidate (`benchmarks.repeatability`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import numpy as np

from pkb_gym.engine.support.pidfds import pid_of
from pkb_gym.engine.support.processors import on_processors

MIN_BYTES, MAX_BYTES = 4 << 20, 64 << 20
"""Size of a copy, in bytes. Staging runs other code and reads other data, however little it writes. The largest copy
and its source are larger than the caches of most processors."""


class StagingTraffic:
    """Copies memory on the processors of ranks; keeps the memory for the next time."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def cause(self, pidfds: Sequence[int], nbytes: int) -> None:
        """Copies memory on the processors of each rank in turn, by the calling thread.

        Args:
            pidfds: Descriptors of the ranks' processes; those that have ended are skipped.
            nbytes: Bytes that staging writes for each rank; between `MIN_BYTES` and `MAX_BYTES` are copied.
        """
        copied = min(max(nbytes, MIN_BYTES), MAX_BYTES)
        if len(self._memory) < 2 * copied:
            self._memory = np.zeros(2 * copied, np.uint8)
        for pid in map(pid_of, pidfds):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError), on_processors(os.sched_getaffinity(pid)):
                    self._memory[copied : 2 * copied] = self._memory[:copied]
