"""The configuration of an evaluation: as requested, and resolved."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import AxisValue, frozen_axes
from pkb_gym.engine.problem.inputs import checked_calls
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.wire.orders import Dialect

Device: TypeAlias = Literal["cpu", "cuda", "emulated"]
"""Device of a candidate; "emulated" is a model of GPUs in one process, for CUDA sources without a GPU."""
HostDevice: TypeAlias = Literal["cpu", "cuda"]
"""Device of ranks that are processes of their own."""
Language: TypeAlias = Literal["cpp", "cuda", "triton", "python"]
Protocol: TypeAlias = Literal["robust", "published"]
Until: TypeAlias = Literal["compile", "check", "time", "profile"]
RaceCheck: TypeAlias = Literal["on", "off", "strict"]
"""Whether the emulator's race detector judges native CUDA sources: "on" fails accesses that nothing orders, and warns
of order that PTX calls too weak; "strict" fails both."""
Sanitizer: TypeAlias = Literal["address", "undefined", "thread", "memcheck", "racecheck", "synccheck", "initcheck"]

SANITIZERS: dict[Language, tuple[Sanitizer, ...]] = {
    "cpp": ("address", "undefined", "thread"),
    "cuda": ("memcheck", "racecheck", "synccheck", "initcheck"),
}
"""Language -> its sanitizers: those of g++, and the tools of compute-sanitizer."""

DIALECTS: dict[Language, Dialect] = {"cpp": "native", "cuda": "native", "triton": "python", "python": "python"}


EMULATED_TIMEOUT_S = 120.0
"""Deadline in seconds of a block of calls: an emulated instruction of a warp takes some hundred nanoseconds."""


EMULATED_TRIALS = 14
"""Two calls with all ranks together, and three under each of the other policies; see `stages/emulate.py`."""


MAX_INT64 = 2**63 - 1
"""The greatest whole number that every message between processes carries."""


class EvalConfig(Record):
    """The configuration as requested; None leaves the choice to `resolve`."""

    device: Literal["auto", "cpu", "cuda", "emulated"] = "auto"
    """"auto" stands for GPUs where there are any, unless the language names a device; never for "emulated"."""
    world_size: int | None = Field(default=None, ge=1, strict=True)
    """Ranks; by default 4, or on GPUs as many of 1, 2, 4, 8 as they serve."""
    ranks_per_gpu: int | None = Field(default=None, ge=1, strict=True)
    """Neighbouring ranks that share a GPU; by default 1. Ranks that share are checked and never timed, and the baseline
    runs on gloo, since NCCL refuses several ranks on one GPU."""
    size: str | dict[str, object] | None = None
    """A named size, or axes that replace those of "published"; by default "published" on GPUs, "tiny" elsewhere."""
    dtype: str | None = None
    """Floating dtype; by default the problem's first."""
    language: Literal["auto", "cpp", "cuda", "triton", "python"] = "auto"
    """"auto" detects it from the source."""
    protocol: Protocol = "robust"
    """Inputs, tolerances and timing: the project's own, or those of the published benchmark."""
    until: Until | None = None
    """Last stage, by default "profile", or "check" of debug builds and on the device "emulated", where nothing can be
    timed; the roofline follows whenever the candidate was timed."""
    trials: int | None = Field(default=None, ge=1, strict=True)
    """Checked calls before timing, at least; by default 4 ("published": 5). There are never fewer than
    4 * world_size + 1, so that each rank can be late in two of them, and held up in two; on the device "emulated" it
    is 14 by default, a few for each way in which ranks are held back, and any number is taken."""
    seed: int = Field(default=0, ge=-MAX_INT64, le=MAX_INT64, strict=True)
    """Together with the evaluator's key, fixes the inputs, those of timed calls together with the source, too; on the
    device "emulated" also the order of execution."""
    turn: int = Field(default=0, ge=0, le=MAX_INT64, strict=True)
    """Turn of the episode; each turn has inputs of its own."""
    timeout_s: float | None = Field(default=None, gt=0, strict=True)
    """Deadline of each block of calls; by default 10 s, or 30 times the baseline's time if that is longer, and 120 s on
    the device "emulated". Loading a candidate may take three times as long."""
    compile_timeout_s: float = Field(default=60.0, gt=0, strict=True)
    """Deadline of the compiler."""
    timing_budget_s: float | None = Field(default=None, gt=0, strict=True)
    """Timing ends after this even if the interval is still wide; by default 0.4 s on GPUs; on the CPU 0.2 s at
    "tiny", else 7 s. It also ends after 16 blocks of each side on GPUs, 60 on the CPU."""
    memory_bytes: int | None = Field(default=None, gt=0, le=MAX_INT64, strict=True)
    """Memory that each rank may allocate beside the symmetric heap; by default a share of the machine's."""
    trace: bool = Field(default=False, strict=True)
    """Whether the profile holds every kernel, copy and call as well, for a timeline."""
    debug: bool = Field(default=False, strict=True)
    """Whether native sources are compiled for finding mistakes: not optimised, with whole debug information and checks
    of bounds. Such a build is checked and never timed, and no reward is paid for it."""
    sanitize: tuple[Sanitizer, ...] = ()
    """Sanitizers that the checked calls are run under first, in the standalone harness: those of g++ for C++ sources,
    tools of compute-sanitizer for CUDA sources. Includes `debug`."""
    race_check: Literal["auto", "on", "off", "strict"] = "auto"
    """Whether a race detector judges: each access of the checked calls on the device "emulated", and on "cuda" of an
    emulated run of native sources beside the other stages, of Triton sources by calls under Triton's GSan. "auto" is
    "on" there, as far as the machine can, and "off" elsewhere. "strict" also fails races of class "weak_order", as the
    letter of PTX's memory model does; GSan has no such class."""

    @field_validator("size")
    @classmethod
    def _lists_become_tuples(cls, size: object) -> object:
        """JSON has no tuples; axes have no lists."""
        return frozen_axes(size) if isinstance(size, dict) else size

    @model_validator(mode="before")
    @classmethod
    def _takes_detect_races(cls, fields: object) -> object:
        return _with_race_check(fields)


class ResolvedConfig(Record):
    """The configuration with every field set, recorded with the results; only results under equal ones compare."""

    device: Device
    world_size: int
    ranks_per_gpu: int = 1
    """Above 1, ranks share GPUs; `until` is never behind "check" then."""
    size: str | dict[str, object]
    dtype: str
    language: Language
    protocol: Protocol
    until: Until
    trials: int
    seed: int
    turn: int
    timeout_s: float
    compile_timeout_s: float
    timing_budget_s: float
    memory_bytes: int
    trace: bool = False
    debug: bool = False
    sanitize: tuple[Sanitizer, ...] = ()
    race_check: RaceCheck = "off"

    @field_validator("size")
    @classmethod
    def _lists_become_tuples(cls, size: object) -> object:
        return frozen_axes(size) if isinstance(size, dict) else size

    @model_validator(mode="before")
    @classmethod
    def _takes_detect_races(cls, fields: object) -> object:
        return _with_race_check(fields)

    def as_request(self) -> EvalConfig:
        """The request that names every choice and so resolves to this."""
        return EvalConfig(**dict(self))

    @property
    def dialect(self) -> Dialect:
        """The dialect of the source."""
        return DIALECTS[self.language]

    @property
    def host_device(self) -> HostDevice:
        """The device of the ranks of the reference gang."""
        return "cpu" if self.device == "emulated" else self.device

    @property
    def size_argument(self) -> str | dict[str, AxisValue]:
        """The size as `Problem.axes` takes it."""
        return self.size  # type: ignore[return-value]  # values were frozen on the way in


def _with_race_check(fields: object) -> object:
    """Stored records that have `detect_races` (true, false, null or "strict") in place of `race_check`."""
    if not isinstance(fields, dict) or "detect_races" not in fields or "race_check" in fields:
        return fields
    value = fields["detect_races"]
    for other, word in ((None, "auto"), (True, "on"), (False, "off"), ("strict", "strict")):
        if type(value) is type(other) and value == other:
            return {name: each for name, each in fields.items() if name != "detect_races"} | {"race_check": word}
    return fields


def resolve(
    config: EvalConfig,
    problem: Problem,
    *,
    device: Device,
    language: Language,
    memory_total_bytes: int,
    gpus: int = 0,
    no_detector: str = "it was not looked for",
    no_gsan: str = "it was not looked for",
) -> ResolvedConfig:
    """Fills in the open choices; the only place where defaults are decided.

    Args:
        config: Requested configuration.
        problem: Problem to be solved.
        device: Device that the configuration resolves to.
        language: Language of the source, used where the configuration has "auto".
        memory_total_bytes: Main memory of this machine, in bytes.
        gpus: GPUs of this machine; none where "cuda" sources are only compiled.
        no_detector: Why the race detector cannot run beside the GPUs of this machine; empty where it can.
        no_gsan: Why Triton's GSan cannot run on the GPUs of this machine; empty where it can.

    Raises:
        ConfigError: the configuration cannot be met on this machine.
        SizeError: size, dtype and world size do not fit the problem.
    """
    debug = config.debug or bool(config.sanitize)
    resolved_language = language if config.language == "auto" else config.language
    _check_device(problem, device, config)
    _check_debug(problem, resolved_language, config)
    world_size, ranks_per_gpu = _ranks(problem, config, device, gpus)
    size = config.size if config.size is not None else ("published" if device == "cuda" else "tiny")
    dtype = config.dtype if config.dtype is not None else problem.dtypes[0]
    problem.check_axes(size, world_size, dtype, config.protocol)  # type: ignore[arg-type]  # values were frozen
    until = last_stage(config.until, debug or ranks_per_gpu > 1, device)
    return ResolvedConfig(
        device=device,
        world_size=world_size,
        ranks_per_gpu=ranks_per_gpu,
        size=size,
        dtype=dtype,
        language=resolved_language,
        protocol=config.protocol,
        until=until,
        trials=_trials(config, world_size, device),
        seed=config.seed,
        turn=config.turn,
        timeout_s=config.timeout_s or (EMULATED_TIMEOUT_S if device == "emulated" else 10.0 * ranks_per_gpu),
        compile_timeout_s=config.compile_timeout_s,
        timing_budget_s=config.timing_budget_s or _timing_budget_s(device, size),
        memory_bytes=config.memory_bytes or max(1 << 30, memory_total_bytes // (2 * world_size)),
        trace=config.trace,
        debug=debug,
        sanitize=tuple(dict.fromkeys(config.sanitize)),
        race_check=_race_check(
            problem, config, device, until, _no_races(device, resolved_language, ranks_per_gpu, no_detector, no_gsan)
        ),
    )


def _race_check(problem: Problem, config: EvalConfig, device: Device, until: Until, why_not: str) -> RaceCheck:
    """Whether a race detector judges.

    Args:
        problem: Problem to be solved.
        config: Requested configuration.
        device: Device of the candidate.
        until: Last stage.
        why_not: Why there is none for the source on this device, as from `_no_races`; empty where there is.

    Raises:
        ConfigError: It is asked for where there is none.
    """
    requested = config.race_check
    if requested in ("on", "strict") and why_not:
        raise ConfigError(f"{problem.name}: {why_not}; leave out race_check={requested!r}")
    if why_not or (until == "compile" and device != "emulated"):
        return "off"
    return "on" if requested == "auto" else requested


def _no_races(device: Device, language: Language, ranks_per_gpu: int, no_detector: str, no_gsan: str) -> str:
    """Why no race detector judges such a source on the device; empty where one does."""
    if device == "emulated":
        return ""
    if device == "cpu":
        return "races are detected in CUDA sources, on device 'emulated' or 'cuda'"
    if language == "triton":
        if ranks_per_gpu > 1:
            no_gsan = f"each rank needs a GPU of its own, and ranks_per_gpu={ranks_per_gpu}"
        checked = "; rank_emulator.checking (TritonProgram) checks kernels without a GPU"
        return no_gsan and f"Triton's GSan cannot look for races here: {no_gsan}{checked}"
    if DIALECTS[language] != "native":
        return f"races are detected in CUDA and Triton sources; this one is {language!r}"
    return no_detector and f"races cannot be detected here: {no_detector}"


def _check_device(problem: Problem, device: Device, config: EvalConfig) -> None:
    """Whether the device can do what is asked of it.

    Raises:
        ConfigError: it cannot.
    """
    if device != "emulated":
        wrong = ("cuda", "triton") if device == "cpu" else ("cpp",)
        if config.language in wrong:
            raise ConfigError(f"{problem.name}: language {config.language!r} does not run on device {device!r}")
        return
    if config.language not in ("auto", "cuda"):
        raise ConfigError(
            f"{problem.name}: device 'emulated' runs CUDA sources of the native dialect; language "
            f"{config.language!r} runs on device {'cuda' if config.language == 'triton' else 'cpu'!r}"
        )
    if config.until in ("time", "profile"):
        raise ConfigError(
            f"{problem.name}: nothing is timed on device 'emulated', which models no time; choose until='check', or "
            f"device 'cuda' on a machine with GPUs for until={config.until!r}"
        )
    if config.debug or config.trace:
        requested = "debug builds" if config.debug else "timelines"
        raise ConfigError(f"{problem.name}: device 'emulated' has no {requested}; its findings name lines without them")


def _trials(config: EvalConfig, world_size: int, device: Device) -> int:
    if device == "emulated":
        return config.trials or EMULATED_TRIALS
    return max(config.trials or (5 if config.protocol == "published" else 4), checked_calls(world_size))


def last_stage(requested: Until | None, untimed: bool, device: Device) -> Until:
    """The last stage of an evaluation.

    Args:
        requested: Requested last stage; None for the last possible one.
        untimed: Whether it is a debug build, or ranks share GPUs.
        device: Device of the candidate; an emulated one times nothing.
    """
    if device == "emulated":
        return requested or "check"
    if untimed and requested != "compile":
        return "check"
    return requested or "profile"


def _ranks(problem: Problem, config: EvalConfig, device: Device, gpus: int) -> tuple[int, int]:
    """The number of ranks, and of ranks that share a GPU; the arguments of `resolve`."""
    ranks_per_gpu = config.ranks_per_gpu or 1
    if device != "cuda" and ranks_per_gpu > 1:
        raise ConfigError(
            f"{problem.name}: ranks_per_gpu={ranks_per_gpu} is for device 'cuda'; on device {device!r} leave it out"
        )
    world_size = config.world_size or default_world_size(gpus * ranks_per_gpu if device == "cuda" else 0)
    if device == "cuda" and 0 < gpus * ranks_per_gpu < world_size:
        needs = "as many GPUs"
        if ranks_per_gpu > 1:
            needs = f"{-(-world_size // ranks_per_gpu)} GPUs of {ranks_per_gpu} ranks each"
        raise ConfigError(
            f"{problem.name}: world size {world_size} needs {needs}; this machine has {gpus}. Ranks may share GPUs "
            f"until stage 'check': ranks_per_gpu={-(-world_size // gpus)}"
        )
    return world_size, min(ranks_per_gpu, world_size)


def _check_debug(problem: Problem, language: Language, config: EvalConfig) -> None:
    if config.debug and DIALECTS[language] != "native":
        raise ConfigError(f"{problem.name}: debug builds are of C++ and CUDA sources; this one is {language!r}")
    if config.sanitize and language not in SANITIZERS:
        raise ConfigError(f"{problem.name}: sanitizers are for C++ and CUDA sources; this one is {language!r}")
    for sanitizer in config.sanitize:
        if sanitizer not in SANITIZERS[language]:
            known = ", ".join(SANITIZERS[language])
            raise ConfigError(f"{problem.name}: sanitizers of {language!r} sources are {known}; {sanitizer!r} is not")


def _timing_budget_s(device: Device, size: object) -> float:
    if device == "cuda":
        return 0.4
    return 0.2 if size == "tiny" else 7.0


def default_world_size(gpus: int) -> int:
    """The largest of 1, 2, 4, 8 that this many GPUs serve; 4 where there are none."""
    return max((size for size in (1, 2, 4, 8) if size <= gpus), default=4)
