"""The times of a candidate beside the baseline's."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import model_validator

from pkb_gym.engine.records.base import Record

LAUNCH_BOUND = 1.1
"""Factor above its captured time from which an eager call of the baseline is bound by its launches.

The host's launches and the device's work overlap, so that an eager call takes the longer of both; below the factor lie
noise and gaps between kernels."""


class CapturedFields(NamedTuple):
    """The names of the fields of a `Timing` that belong to a baseline of CUDA graphs.

    Attributes:
        baseline_us: Time of a call of that baseline, in microseconds.
        speedup_low: Lower end of the 95 % interval of the speedup over it.
        speedup_high: Upper end of that interval.
    """

    baseline_us: str
    speedup_low: str
    speedup_high: str


CAPTURED = CapturedFields("baseline_graph_us", "graph_speedup_low", "graph_speedup_high")
REGISTERED = CapturedFields("baseline_registered_us", "registered_speedup_low", "registered_speedup_high")


class SpeedupOver(NamedTuple):
    """A speedup, and the baseline that it is over.

    Attributes:
        baseline: Baseline: the eager one, the one that is captured in CUDA graphs, or these on registered memory.
        baseline_us: Time of a call of that baseline, in microseconds.
        speedup: `baseline_us` over the candidate's time.
        low: Lower end of the 95 % interval of `speedup`.
        high: Upper end of that interval.
    """

    baseline: Literal["eager", "captured", "registered"]
    baseline_us: float
    speedup: float
    low: float
    high: float


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
    baseline_registered_us: float | None = None
    """Time per call of the same CUDA graphs with every argument and allocation in memory that is registered with NCCL
    as symmetric windows, so that its kernels reach peers' tensors where they lie; measured as `baseline_graph_us`. None
    on one rank, where there is no `baseline_graph_us`, where torch or NCCL cannot register (before torch 2.9 and
    NCCL 2.27), and where the ranks' allocations differ. It is not always the smaller of the two."""
    registered_speedup_low: float | None = None
    """Lower end of the 95 % interval of `baseline_registered_us / candidate_us`; None where there is no such time."""
    registered_speedup_high: float | None = None
    """Upper end of the same interval."""
    delivered_bytes: int
    """Maximum over ranks of the bytes per call that are returned and copied into the symmetric heap inside the clock,
    for both baselines and the candidate alike. Native kernels write outputs of static shape in place; a python source
    returns tensors of its own, all of which are copied. So a problem's baseline takes longer beside a python source
    than beside a native one, by about 2 * `delivered_bytes` over the memory's bandwidth where kernels take longer than
    their launches (AllReduce at size large on H200: 336 us and 301 us). Speedups are over what the other side pays too,
    and times compare within one dialect."""
    delivery_us: float = 0.0
    """Time of that copy per call, as a rank of the reference gang takes for it. The lower ends of all speedups are over
    baselines without it: a python source that writes its results into the heap itself gains nothing."""
    converged: bool
    """Whether the interval became tight before the budget ran out."""
    delayed_pairs: int | None = None
    """Pairs of blocks during which other work of the machine took processors from the ranks of either side. They were
    measured again and do not count, unless most pairs were delayed. None in records of versions that did not look."""
    blocks: tuple[Block, ...]
    """Raw samples."""

    @property
    def over_eager(self) -> SpeedupOver:
        """The speedup over the eager baseline."""
        return SpeedupOver("eager", self.baseline_us, self.speedup, self.speedup_low, self.speedup_high)

    @property
    def over_captured(self) -> SpeedupOver | None:
        """The speedup over the captured baseline; None where there is none."""
        ends = self.graph_speedup_low, self.graph_speedup_high
        return self._over("captured", self.baseline_graph_us, *ends)

    @property
    def over_registered(self) -> SpeedupOver | None:
        """The speedup over the captured baseline on registered memory; None where there is none."""
        ends = self.registered_speedup_low, self.registered_speedup_high
        return self._over("registered", self.baseline_registered_us, *ends)

    @property
    def speedup_captured(self) -> float | None:
        """`baseline_graph_us / candidate_us`; None where there is no captured baseline."""
        return None if self.over_captured is None else self.over_captured.speedup

    @property
    def speedup_registered(self) -> float | None:
        """`baseline_registered_us / candidate_us`; None where there is no baseline on registered memory."""
        return None if self.over_registered is None else self.over_registered.speedup

    @property
    def leading(self) -> SpeedupOver:
        """The speedup over the captured baseline where the eager one is bound by its launches, else over the eager.

        A call whose host takes longer than its device measures the host: it takes 44 us on one machine and 106 us on
        another, and captured 36 us on both.
        """
        captured = self.over_captured
        launch_bound = captured is not None and self.baseline_us > LAUNCH_BOUND * captured.baseline_us
        return captured if captured is not None and launch_bound else self.over_eager

    @property
    def delivers(self) -> bool:
        """Whether both sides' times include the copy of returned outputs into the symmetric heap."""
        return self.delivered_bytes > 0

    def _over(
        self, baseline: Literal["captured", "registered"], call_us: float | None, low: float | None, high: float | None
    ) -> SpeedupOver | None:
        if call_us is None or low is None or high is None:
            return None
        return SpeedupOver(baseline, call_us, call_us / self.candidate_us, low, high)

    @model_validator(mode="after")
    def _interval_belongs_to_graphs(self) -> Self:
        for names in (CAPTURED, REGISTERED):
            if len({getattr(self, name) is None for name in names}) > 1:
                raise ValueError(
                    f"{names.baseline_us} and both ends of the speedup over it are known together or not at all"
                )
        return self
