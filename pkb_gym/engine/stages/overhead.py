"""The overhead of a block that its calls have no part in; subtracted from its time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Overhead:
    """The parts of a block's time that are subtracted from it.

    Attributes:
        gate_us: Time per block to open the gate, start the first work and receive the last completion, in microseconds.
        context_switch_us: Extra gate time of the candidate's blocks, in microseconds, as the GPUs switch to its
            contexts; 0 on the CPU.
        baseline_handover_us: Time of one handover of the baseline's blocks, in microseconds; one precedes each call and
            one follows the last.
        candidate_handover_us: Time of one handover of the candidate's blocks, in microseconds.
        pad_ns: Excess of a handover's time on the GPU over its time on the host, in nanoseconds, as in
            `EnqueuedHandover`; 0 on the CPU.
    """

    gate_us: float
    context_switch_us: float
    baseline_handover_us: float
    candidate_handover_us: float
    pad_ns: int

    def baseline_us(self, calls: int) -> float:
        """Overhead of a block of the baseline, in microseconds."""
        return self.gate_us + (calls + 1) * self.baseline_handover_us

    def candidate_us(self, calls: int) -> float:
        """Overhead of a block of the candidate, in microseconds."""
        return self.gate_us + self.context_switch_us + (calls + 1) * self.candidate_handover_us

    @classmethod
    def median(cls, measured: Sequence[Overhead]) -> Overhead:
        """The median overhead of several measurements, since other work makes one long."""
        return cls(
            gate_us=statistics.median(one.gate_us for one in measured),
            context_switch_us=statistics.median(one.context_switch_us for one in measured),
            baseline_handover_us=statistics.median(one.baseline_handover_us for one in measured),
            candidate_handover_us=statistics.median(one.candidate_handover_us for one in measured),
            pad_ns=int(statistics.median(one.pad_ns for one in measured)),
        )
