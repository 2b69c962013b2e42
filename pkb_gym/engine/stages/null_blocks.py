"""Measures the overhead of blocks with calls of nothing, where no candidate can make it longer."""

from __future__ import annotations

from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.reference_gang import ReferenceGang
from pkb_gym.engine.ranks.reference_orders import ServeNullBlock, StageInputs
from pkb_gym.engine.rankside.orders import HandoverKind, RunNullBlock
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.stages.timing_statistics import typical_us

NULL_BLOCKS = 4
"""Of each kind and side."""

NULL_CALLS = {"cpu": 32, "cuda": 256}
"""Calls of nothing in a block: so many that the gate and its noise are shared out."""


def measure_overhead(reference: ReferenceGang, candidate: CandidateGang) -> Overhead:
    """Measures it with calls of nothing, before a candidate is loaded; the reference gang must have inputs.

    Null blocks of both gangs take turns. Inputs are staged by the reference gang, so that GPUs switch to the
    candidate's contexts after the gate has opened. The lower quartile is used, as for the blocks that it is subtracted
    from.

    On GPUs a handover takes the device longer than the host, which pads the difference: what it adds to a call is then
    the same, whichever of the two the call is bound by.
    """
    on_gpus, calls = reference.device == "cuda", NULL_CALLS[reference.device]
    kind: HandoverKind = "enqueued" if on_gpus else "waiting"
    empty = RunNullBlock(0, "none", 0)
    pad_ns = 0
    if on_gpus:
        empty_ns = reference.run_null_block(empty)
        block_ns = reference.run_null_block(RunNullBlock(calls, kind, 0))
        pad_ns = max(0, (block_ns - empty_ns - reference.host_ns) // (calls + 1))
    null = RunNullBlock(calls, kind, pad_ns)
    blocks_us: dict[str, list[float]] = {}
    for _ in range(NULL_BLOCKS):
        for name, order in (("empty", empty), ("null", null)):
            blocks_us.setdefault(f"{name} baseline", []).append(reference.run_null_block(order) / 1e3)
            candidate_us = _candidate_null_block_us(reference, candidate, order)
            blocks_us.setdefault(f"{name} candidate", []).append(candidate_us)
    typical = {name: typical_us(samples) for name, samples in blocks_us.items()}
    per_handover = {
        side: max(0.0, typical[f"null {side}"] - typical[f"empty {side}"]) / (calls + 1)
        for side in ("baseline", "candidate")
    }
    switch_us = max(0.0, typical["empty candidate"] - typical["empty baseline"]) if on_gpus else 0.0
    return Overhead(
        gate_us=typical["empty baseline"],
        context_switch_us=switch_us,
        baseline_handover_us=per_handover["baseline"],
        candidate_handover_us=per_handover["candidate"],
        pad_ns=pad_ns,
    )


def _candidate_null_block_us(reference: ReferenceGang, candidate: CandidateGang, order: RunNullBlock) -> float:
    staged = StageInputs() if order.handovers == "none" else ServeNullBlock(order.calls)
    nanoseconds = candidate.run_null_block(order, lambda: reference.stage([staged] * reference.world_size))
    reference.end_block()
    return nanoseconds / 1e3
