"""Measurements of baselines and devices that hold for all candidates of an evaluator."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from pkb_gym.engine.rankside.orders import Dialect

MEASUREMENTS = 8


class BaselineCache:
    """Figures that no candidate has a part in; measured when first needed."""

    def __init__(self) -> None:
        self._captured_us: dict[tuple[object, ...], float | None] = {}
        self._context_switches_us: dict[tuple[int, Dialect], list[float]] = {}

    def captured_us(self, case: tuple[object, ...], measure: Callable[[], float | None]) -> float | None:
        """The baseline as CUDA graphs, in microseconds a call; None where it cannot be captured.

        Args:
            case: everything that it depends on.
            measure: measures it; its exceptions leave None behind, and are raised.
        """
        if case not in self._captured_us:
            self._captured_us[case] = None
            self._captured_us[case] = measure()
        return self._captured_us[case]

    def context_switch_us(self, case: tuple[int, Dialect], measure: Callable[[], float]) -> float:
        """See `overhead.context_switch_us`: the median over the first evaluations, since other work makes one long.

        Args:
            case: world size, and dialect of the candidate.
            measure: measures it once.
        """
        measured = self._context_switches_us.setdefault(case, [])
        if len(measured) < MEASUREMENTS:
            measured.append(measure())
        return statistics.median(measured)
