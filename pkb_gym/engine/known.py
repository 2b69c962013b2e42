"""What an evaluator has measured once for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Known:
    """Figures that no candidate has a part in.

    Attributes:
        graph_us: problem, size, world size, dtype and protocol -> microseconds a call of the baseline as CUDA graphs,
            None where it cannot be captured.
        entry_us: world size and whether the dialect is native -> microseconds a block, see `gates.entry_us`.
    """

    graph_us: dict[tuple[object, ...], float | None] = field(default_factory=dict)
    entry_us: dict[tuple[int, bool], float] = field(default_factory=dict)

    def least_entry_us(self, case: tuple[int, bool], measured_us: float) -> float:
        """The least that was measured so far, this time included: other work only ever adds."""
        self.entry_us[case] = min(measured_us, self.entry_us.get(case, measured_us))
        return self.entry_us[case]
