"""Measures the overhead of blocks with null calls, where no candidate can make it longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.gangs.reference_gang import ReferenceGang
from pkb_gym.engine.reference.orders import ServeNullBlock, StageInputs
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.wire.orders import HandoverKind, RunNullBlock

NULL_BLOCKS = 2
"""Number of null blocks of each kind and side."""

FEW_CALLS, MANY_CALLS = 4, {"cpu": 36, "cuda": 260}
"""Null calls of short and of long blocks: what a block costs once, and what each handover costs."""


@dataclass(frozen=True)
class _Line:
    """Microseconds of null blocks by their number of calls."""

    once_us: float
    call_us: float

    @classmethod
    def through(cls, few_us: Sequence[float], many_us: Sequence[float], many: int) -> _Line:
        """Through the fastest short block and the fastest long one: other work only ever adds time."""
        short_us, long_us = min(few_us), min(many_us)
        call_us = max(0.0, (long_us - short_us) / (many - FEW_CALLS))
        return cls(max(0.0, short_us - FEW_CALLS * call_us), call_us)


def measure_overhead(reference: ReferenceGang, candidate: CandidateGang) -> Overhead:
    """Measures it with null calls, before a candidate is loaded; the reference gang must have inputs.

    Null blocks of both gangs take turns, with handovers between their calls and without. Inputs are staged by the
    reference gang, so that GPUs switch to the candidate's contexts after the gate has opened.

    On GPUs a handover takes the device longer than the host, which pads the difference: what it adds to a call is then
    the same, whichever of the two the call is bound by.
    """
    on_gpus, many = reference.device == "cuda", MANY_CALLS[reference.device]
    kind: HandoverKind = "enqueued" if on_gpus else "waiting"
    pad_ns = _padding_ns(reference, many) if on_gpus else 0
    orders = {
        (handovers, calls): RunNullBlock(calls, handovers, pad_ns)
        for handovers in ("none", kind)
        for calls in (FEW_CALLS, many)
    }
    baseline_us: dict[tuple[str, int], list[float]] = {case: [] for case in orders}
    candidate_us: dict[tuple[str, int], list[float]] = {case: [] for case in orders}
    for _ in range(NULL_BLOCKS):
        for case, order in orders.items():
            baseline_us[case].append(reference.run_null_block(order) / 1e3)
            candidate_us[case].append(_candidate_null_block_us(reference, candidate, order))
    sides = []
    for blocks_us in (baseline_us, candidate_us):
        plain = _Line.through(blocks_us["none", FEW_CALLS], blocks_us["none", many], many)
        served = _Line.through(blocks_us[kind, FEW_CALLS], blocks_us[kind, many], many)
        handover_us = max(0.0, served.call_us - plain.call_us)
        sides.append((max(0.0, served.once_us - handover_us), handover_us))
    (gate_us, baseline_handover_us), (candidate_once_us, candidate_handover_us) = sides
    return Overhead(
        gate_us=gate_us,
        context_switch_us=max(0.0, candidate_once_us - gate_us) if on_gpus else 0.0,
        baseline_handover_us=baseline_handover_us,
        candidate_handover_us=candidate_handover_us,
        pad_ns=pad_ns,
    )


def _padding_ns(reference: ReferenceGang, calls: int) -> int:
    """Excess of a handover's time on the GPU over its time on the host."""
    plain_ns = reference.run_null_block(RunNullBlock(calls, "none", 0))
    plain_host_ns = reference.host_ns
    served_ns = reference.run_null_block(RunNullBlock(calls, "enqueued", 0))
    served_host_ns = reference.host_ns
    return max(0, (served_ns - plain_ns - (served_host_ns - plain_host_ns)) // (calls + 1))


def _candidate_null_block_us(reference: ReferenceGang, candidate: CandidateGang, order: RunNullBlock) -> float:
    staged = StageInputs() if order.handovers == "none" else ServeNullBlock(order.calls)
    nanoseconds = candidate.run_null_block(order, lambda: reference.stage([staged] * reference.world_size))
    reference.end_block()
    return nanoseconds / 1e3
