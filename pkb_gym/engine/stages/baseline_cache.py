"""Measurements of baselines and devices that hold for all candidates of an evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pkb_gym.engine.stages.overhead import Overhead

MEASUREMENTS = 6


class BaselineCache:
    """Figures that no candidate has a part in; measured when first needed."""

    def __init__(self) -> None:
        self._captured_us: dict[tuple[object, ...], Sequence[float] | None] = {}
        self._overheads: dict[tuple[object, ...], list[Overhead]] = {}

    def captured_us(
        self, case: tuple[object, ...], measure: Callable[[], Sequence[float] | None]
    ) -> Sequence[float] | None:
        """The baseline as CUDA graphs, in microseconds a call, block by block; None where it cannot be captured.

        Args:
            case: Identity of the measurement: everything that its result depends on.
            measure: Function that takes the measurement. An exception is passed on, and None is stored in its place.
        """
        if case not in self._captured_us:
            self._captured_us[case] = None
            self._captured_us[case] = measure()
        return self._captured_us[case]

    def overhead(self, case: tuple[object, ...], measure: Callable[[], Overhead]) -> Overhead:
        """The median over the first evaluations, since other work makes one long.

        Args:
            case: Identity of the measurement: everything that its result depends on.
            measure: Function that takes the measurement, called at most once per case.
        """
        measured = self._overheads.setdefault(case, [])
        if len(measured) < MEASUREMENTS:
            measured.append(measure())
        return Overhead.median(measured)
