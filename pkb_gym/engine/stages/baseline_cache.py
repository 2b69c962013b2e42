"""What an evaluator has measured once for all candidates."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

ENTRIES = 8


@dataclass
class Known:
    """Figures that no candidate has a part in.

    Attributes:
        graph_us: problem, size, world size, dtype and protocol -> microseconds a call of the baseline as CUDA graphs,
            None where it cannot be captured.
        entries_us: world size and whether the dialect is native -> what `gates.entry_us` found, the first times.
    """

    graph_us: dict[tuple[object, ...], float | None] = field(default_factory=dict)
    entries_us: dict[tuple[int, bool], list[float]] = field(default_factory=dict)

    def entry_us(self, case: tuple[int, bool], measure: Callable[[], float]) -> float:
        """The median over the first evaluations, each of which measures it: other work makes a single one long."""
        measured = self.entries_us.setdefault(case, [])
        if len(measured) < ENTRIES:
            measured.append(measure())
        return statistics.median(measured)
