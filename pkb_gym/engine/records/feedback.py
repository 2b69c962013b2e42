"""The record of one evaluation, which everything above the engine reads.

Its JSON schema (`Feedback.model_json_schema()`) carries the docstring under each field. Parts that were not reached are
None; nothing is ever NaN or -1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.check_report import CheckReport, Race
from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.records.config import ResolvedConfig, Sanitizer
from pkb_gym.engine.records.emulation import Emulation
from pkb_gym.engine.records.mechanisms import Mechanism
from pkb_gym.engine.records.race_check import RaceCheckReport
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.records.timing import Timing


class Stage(StrEnum):
    """The steps of an evaluation, in order; `Feedback.stage` is the last one completed."""

    STATIC = "static"
    """The text was accepted."""
    COMPILE = "compile"
    """The source compiled (native) or was imported (python)."""
    RUN = "run"
    """The candidate was loaded on every rank, and every checked call returned."""
    CHECK = "check"
    """Every output of every rank and trial was right."""
    TIME = "time"
    """The candidate was timed against the baseline, and every timed output was right."""
    PROFILE = "profile"
    """The candidate was profiled."""

    @property
    def order(self) -> int:
        """Position, from 0."""
        return list(Stage).index(self)


class Failure(StrEnum):
    """Why an evaluation stopped before its end."""

    REJECTED = "rejected"
    """The text is not a source of the expected language; no compiler was run."""
    COMPILE_ERROR = "compile_error"
    """The compiler, the linker or the first import failed."""
    LOAD_ERROR = "load_error"
    """It could not be loaded: `solution` is missing or has another signature, or a symbol is undefined."""
    RUNTIME_ERROR = "runtime_error"
    """It raised, crashed, ended its process, or wrote outside of its tensors."""
    OUT_OF_MEMORY = "out_of_memory"
    """It asked for more memory than a rank may have."""
    DEADLOCK = "deadlock"
    """Every unfinished rank waited for another: for good, or when the deadline passed."""
    TIMEOUT = "timeout"
    """The deadline passed while a rank was still computing."""
    WRONG_SHAPE_OR_DTYPE = "wrong_shape_or_dtype"
    """A returned output has another structure, shape or dtype than declared."""
    OUTPUT_MISMATCH = "output_mismatch"
    """An output differs from the expected one by more than its rule allows."""
    RACE = "race"
    """It breaks the call contract: right only while ranks begin and end their calls together; see `Feedback.race`."""
    INPUT_MODIFIED = "input_modified"
    """An argument that must stay as it is was overwritten."""
    INTEGRITY = "integrity"
    """It did something that no honest kernel does; see `Feedback.integrity`."""
    INFRASTRUCTURE = "infrastructure"
    """The evaluator or its machine failed, not the candidate: no reward, the episode is truncated."""
    COMPILED_ONLY = "compiled_only"
    """It compiled, and this machine has no GPU that could run it: nothing is known of it, and no reward is paid."""


class Environment(Record):
    """The machine and software of the evaluation."""

    hardware: str
    """Name of the processor or GPU."""
    processors: int
    """Processor cores of the machine."""
    sandbox: str
    """"bubblewrap" or "limits" (resource limits and system call filter alone)."""
    python: str
    """Version of Python."""
    torch: str
    """Version of the baseline's torch."""
    toolchain: str | None
    """Compiler and version, None for a python source."""
    header_libraries: tuple[str, ...] = ()
    """Name and version of the header libraries that CUDA sources can include there, such as "CUTLASS 4.2.0"."""
    driver: str | None = None
    """Version of the GPU's driver; None on the CPU."""
    nccl: str | None = None
    """Version of NCCL; None on the CPU."""
    multicast: bool | None = None
    """Whether NVLink multicast may be used; None on the CPU."""


class CompileReport(Record):
    """Result and messages of the compiler, or of the first import."""

    duration_s: float
    """Wall time of the compiler; of the original run where the result was cached."""
    cached: bool
    """Whether the result was taken from the cache."""
    log: str
    """Warnings and errors, cut in the middle if very long."""
    binary_bytes: int | None
    """Size of the shared object; None for a python source."""
    kernels: tuple[KernelResources, ...] = ()
    """Resources of each GPU kernel, in the compiler's order, at most 64; native CUDA sources only."""
    transfers: InstructionCounts | None = None
    """Instructions of all GPU kernels together; None where there are none or the machine code could not be read."""


class SanitizerReport(Record):
    """The result of the checked calls under one sanitizer."""

    sanitizer: Sanitizer
    """Sanitizer of g++, or a tool of compute-sanitizer."""
    found: bool
    """Whether this is a finding."""
    summary: str
    """One line: kind, line of the source, function; or that nothing was found."""
    report: str
    """The sanitizer's own words on all ranks, cut in the middle; with the first finding alone."""


class RankProfile(Record):
    """One rank's time by activity, over the profiled calls: an untrusted rank report, not evidence.

    On GPUs, `compute_us`, `communication_us`, `waiting_us` and `host_us` add up to the wall time: a moment that fits
    several of them counts as the first.
    """

    rank: int
    """Number of the rank."""
    calls: int
    """Number of profiled calls."""
    wall_us: float
    """Wall time per call; the profiler itself slows launches."""
    compute_us: float
    """Time per call inside `solution` and outside communication; on GPUs, while kernels other than those below ran."""
    communication_us: float
    """Time per call of copies through `pkb/symm.h` (native) or of torch.distributed (python). On GPUs, of copies
    between GPUs and NCCL's kernels while nothing computed."""
    waiting_us: float
    """Time per call of waiting for signals and in barriers. On GPUs, of kernels that do nothing else; the waits of
    other kernels are part of their time, see `mean_wait_us`."""
    host_us: float
    """Time per call outside `solution`: the call itself. On GPUs, while the GPU was idle."""
    busy_us: float | None = None
    """Time per call while the GPU ran any work of this rank; None on the CPU."""
    overlap_us: float | None = None
    """Time per call while communication and computing ran at once; None on the CPU. Overlap within a kernel is not
    seen."""
    waits: float | None = None
    """Waits per call of `pkb/symm.h` that found their signal unset, each waiting thread of a GPU by itself; native CUDA
    sources only."""
    mean_wait_us: float | None = None
    """Mean time of one wait. Threads wait at the same time, so that sums over them have no meaning."""
    put_bytes: int
    """Bytes per call that `put` copied into peers' memory; direct stores are not seen, nor copy engines on GPUs."""
    got_bytes: int
    """Bytes per call that `get` copied from peers' memory; direct loads are not seen, nor copy engines on GPUs."""
    copied_bytes: int | None = None
    """Bytes per call that copy engines copied between GPUs, as the profiler recorded; None on the CPU."""
    link_bytes_per_s: float | None
    """Put and got bytes over the time spent copying them; None where nothing was copied, and on GPUs."""
    sent_bytes: int | None = None
    """Bytes per call that the GPU sent over NVLink: the driver's counters, read by the evaluator; None without them."""
    received_bytes: int | None = None
    """Bytes per call that the GPU received over NVLink, from the same counters; None without them."""
    user_us: float
    """Processor time per call."""
    system_us: float
    """Processor time per call, in the kernel."""
    minor_page_faults: int
    """Minor page faults over all profiled calls."""
    major_page_faults: int
    """Major page faults over all profiled calls."""
    voluntary_switches: int
    """Voluntary context switches over all profiled calls."""
    involuntary_switches: int
    """Involuntary context switches over all profiled calls."""


class HotSpot(Record):
    """One operator of the baseline library or kernel, from the profiler."""

    name: str
    """Name of the operator, as the profiler has it."""
    calls: int
    """Number of calls of the operator over all profiled calls."""
    self_us: float
    """Time over all profiled calls, without operators that it called."""


class KernelTime(Record):
    """One kernel, copy or fill of a GPU, from the profiler."""

    name: str
    """Kernel name as the profiler has it, at most 200 characters."""
    launches: int
    """Number of launches over all profiled calls."""
    mean_us: float
    """Time of one launch on the GPU."""
    share: float
    """Share of the time of all listed kernels, in [0, 1]."""


class TraceEvent(Record):
    """One slice of a timeline."""

    rank: int
    """Number of the rank."""
    kind: Literal["call", "kernel", "copy", "fill"]
    """A call of `solution` on the host, or what ran on the GPU."""
    name: str
    """Name of the kernel or copy, as the profiler has it, or the number of the call."""
    stream: int | None
    """Number of its CUDA stream; None for calls."""
    start_us: float
    """Since the first event of all ranks."""
    duration_us: float
    """Length of the slice."""
    nbytes: int | None = None
    """Copied or filled; None for kernels and calls."""


class Profile(Record):
    """Per rank, and rank 0's hottest operators (python dialect on the CPU) or kernels (GPUs)."""

    ranks: tuple[RankProfile, ...]
    """One record for each rank, in order."""
    hot_spots: tuple[HotSpot, ...] = ()
    """Rank 0's operators, hottest first; python dialect on the CPU only."""
    kernels: tuple[KernelTime, ...] = ()
    """Rank 0's, longest total time first, at most 12; GPUs only."""
    mechanisms: tuple[Mechanism, ...] = ()
    """Means by which data may have moved between GPUs, from the trace, the machine code and NVLink's counters;
    "kernels" where the machine code was not read. Empty on the CPU, and where there is no evidence."""
    trace: tuple[TraceEvent, ...] = ()
    """Timeline in order of ranks, at most 2000 events a rank besides the calls; empty unless `config.trace` is set."""


class Finding(Record):
    """Something that no honest kernel does."""

    code: Literal[
        "beats_roofline",
        "wrong_while_timed",
        "late_output",
        "interference",
        "harness_tampering",
    ]
    """Kind of behaviour. "beats_roofline": faster than the lower bound of every legal kernel. "wrong_while_timed": the
    same inputs came out wrong while timed and right in another call, or right when checked and wrong later.
    "late_output": outputs were missing when the last rank had finished or asked for its next call, and came later.
    "interference": a frozen candidate used a processor or a GPU. "harness_tampering": a rank sent the evaluator a
    message that the rank program never sends."""
    detail: str
    """The evidence, with numbers."""


LAST_OUTPUT = "\nlast output:\n"
"""Line in a message between the failure and the end of what the candidate wrote before it."""


class Feedback(Record):
    """The result of one evaluation."""

    schema_version: Literal[2] = 2
    """Version of the record; it rises when a field changes its meaning."""
    problem: str
    """Name of the problem."""
    problem_sha256: str
    """SHA-256 of the problem's declaration and reference, without comments and docstrings; in records of earlier
    versions, which have no `problem_text_sha256`, of the whole files."""
    problem_text_sha256: str | None = None
    """SHA-256 of the whole files, by which records of earlier versions are compared; None in these."""
    source_sha256: str
    """Digest of the submitted text."""
    nonce: str = ""
    """Random digits of this attempt, which its timed inputs follow from beside the key and the source; empty where a
    replay key alone has fixed them. After the digits of a key, `--replay-key` takes them."""
    config: ResolvedConfig
    """Resolved configuration of the evaluation."""
    environment: Environment
    """Machine of the evaluation."""
    stage: Stage | None
    """Furthest stage completed."""
    failure: Failure | None = None
    """Reason for the early end; None if every requested stage completed and the candidate is right."""
    message: str = ""
    """One paragraph for the agent: the failure and its remedy, or empty."""
    failed_rank: int | None = None
    """The rank that failed first."""
    output: str = ""
    """The tail of the candidate's stdout and stderr, the number of the rank in front of each line."""
    calls_torch_distributed: bool | None = None
    """Whether it calls collectives of the library that the baseline uses (torch.distributed, gloo, NCCL), and so is no
    custom communication kernel: by its text, by traffic of its ranks' network while it ran (whatever its dialect), or
    by NCCL's kernels in its profile, which are an untrusted rank report. None without evidence."""
    compile: CompileReport | None = None
    """Present when stage `compile` was reached and the text accepted."""
    sanitizers: tuple[SanitizerReport, ...] = ()
    """Sanitizer reports in the order of `config.sanitize`."""
    race: Race | None = None
    """Present exactly when `failure` is "race"."""
    emulation: Emulation | None = None
    """Present when calls were made on emulated GPUs, by the evaluation itself or by the race detector beside it."""
    race_check: RaceCheckReport | None = None
    """Present when the race detector was asked beside GPUs, and nothing else had failed."""
    check: CheckReport | None = None
    """Present when stage `run` completed, whatever the verdict."""
    timing: Timing | None = None
    """Present exactly when stage `time` completed."""
    profile: Profile | None = None
    """Present when stage `profile` completed and the ranks' reports are consistent."""
    roofline: Roofline | None = None
    """Present exactly when something was timed."""
    integrity: tuple[Finding, ...] = ()
    """Behaviour that no honest kernel shows; any finding fails the evaluation."""
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Wall time of each stage and of what lies between: waiting for its turn, preparing and ending ranks, and other
    work. Their sum is the wall time of the evaluation."""

    @property
    def passed(self) -> bool:
        """Whether every requested stage completed without a failure."""
        return self.failure is None and self.stage is not None

    @property
    def is_correct(self) -> bool:
        """Whether every checked output was right, and no later evidence speaks against it."""
        caught = self.failure in (Failure.INTEGRITY, Failure.RACE)
        return self.check is not None and self.check.passed and not caught

    @property
    def speedup(self) -> float | None:
        """Baseline time over candidate time, None if not timed."""
        return None if self.timing is None else self.timing.speedup

    @model_validator(mode="after")
    def _parts_match_stage(self) -> Self:
        reached = -1 if self.stage is None else self.stage.order
        if (self.timing is not None) != (reached >= Stage.TIME.order):
            raise ValueError(f"timing is {'present' if self.timing else 'absent'} at stage {self.stage}")
        if (self.roofline is not None) and self.timing is None:
            raise ValueError("a roofline without timing")
        if reached >= Stage.CHECK.order and (self.check is None or not self.check.passed):
            raise ValueError(f"stage {self.stage} without a passed check")
        if self.failure is Failure.INTEGRITY and not self.integrity:
            raise ValueError("failure integrity without a finding")
        return self
