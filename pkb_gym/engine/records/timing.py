"""The times of a candidate beside the baseline's."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from pkb_gym.engine.records.base import Record


class Block(Record):
    """One pair of blocks, baseline then candidate or the other way round, on the same inputs."""

    calls: int
    """Calls in each of the two."""
    baseline_us: float
    """Time of one baseline call, in microseconds."""
    candidate_us: float
    """Time of one candidate call, in microseconds."""


class Timing(Record):
    """Baseline and candidate in alternating blocks, by the evaluator's clock."""

    protocol: Literal["robust", "published"]
    """Robust: blocks until the interval is tight. Published: 500 warm-up and 100 timed calls."""
    baseline_us: float
    """Mean of the fastest two fifths of the blocks, per call."""
    candidate_us: float
    """Mean of the fastest two fifths of the blocks, per call."""
    speedup: float
    """`baseline_us / candidate_us`."""
    speedup_low: float
    """Lower end of the 95 % interval of `speedup`."""
    speedup_high: float
    """Upper end of the 95 % interval of `speedup`."""
    gate_us: float
    """Time for opening the gate and receiving the last completion, per block; subtracted from all times."""
    context_switch_us: float | None = None
    """Time for switching the GPUs from the reference gang's contexts to the candidate's, per block; subtracted from the
    candidate's times in addition to the gate. Measured before the candidate was loaded. None on the CPU."""
    baseline_handover_us: float
    """Time for the arrival of the baseline's arguments and the departure of its results, per call; subtracted from its
    times. Measured with calls of nothing."""
    candidate_handover_us: float
    """The same for the candidate; measured before it was loaded."""
    baseline_alone_us: float | None
    """Baseline per call before the candidate was loaded."""
    baseline_graph_us: float | None = None
    """Time per call of the baseline's CUDA graphs, so that the host launches nothing, on inputs that were used before;
    measured once for all candidates of an evaluator and dialect. None on the CPU, and where the baseline cannot be
    captured. A speedup over `baseline_us` that is no speedup over this time comes from saved launches, not from a
    better kernel."""
    graph_speedup_low: float | None = None
    """Lower end of the 95 % interval of `baseline_graph_us / candidate_us`; None where there is no such time."""
    graph_speedup_high: float | None = None
    """Upper end of the same interval."""
    delivered_bytes: int
    """Maximum over ranks of the bytes per call that are returned and copied into the symmetric heap inside the clock,
    for both baselines and the candidate alike. Native kernels write outputs of static shape in place; a python source
    returns tensors of its own, all of which are copied. So a problem's baseline takes longer beside a python source
    than beside a native one, by about 2 * `delivered_bytes` over the memory's bandwidth where kernels take longer than
    their launches (AllReduce at size large on H200: 336 us and 301 us). Speedups are over what the other side pays too,
    and times compare within one dialect."""
    delivery_us: float = 0.0
    """Time of that copy per call, as a rank of the reference gang takes for it. `speedup_low` and `graph_speedup_low`
    are over baselines without it: a python source that writes its results into the heap itself gains nothing."""
    converged: bool
    """Whether the interval became tight before the budget ran out."""
    blocks: tuple[Block, ...]
    """Raw samples."""

    @property
    def delivers(self) -> bool:
        """Whether both sides' times include the copy of returned outputs into the symmetric heap."""
        return self.delivered_bytes > 0

    @model_validator(mode="after")
    def _interval_belongs_to_graphs(self) -> Self:
        parts = (self.baseline_graph_us, self.graph_speedup_low, self.graph_speedup_high)
        if len({part is None for part in parts}) > 1:
            raise ValueError("baseline_graph_us and both ends of the speedup over it are known together or not at all")
        return self
