"""The evaluator of this machine: a loop over stages.

    static -> compile -> run + check -> time -> profile, then the roofline

Texts are compiled side by side; from loading on, one candidate at a time has the machine.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import compile_native, exports_solution
from pkb_gym.engine.compile.nvcc import DEFAULT_ARCHITECTURE, compile_cuda
from pkb_gym.engine.compile.python import build_python
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.arbiter import DeviceGate
from pkb_gym.engine.evaluators.standby import QuietDevices, Standby
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.reference_gang import ReferenceGang
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import Device, EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import CompileReport, Failure, Feedback, Stage
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.baseline_cache import Known
from pkb_gym.engine.stages.candidate_run import Session
from pkb_gym.engine.stages.feedback_builder import Findings, Stopped
from pkb_gym.engine.stages.progress import PREPARING, WAITING, Progress
from pkb_gym.engine.stages.static import Rejected, calls_torch_distributed, check_text, detect_language, makes_streams
from pkb_gym.engine.support import env_vars

STANDBY_GANGS = 8
"""Each holds a context on every GPU, some hundreds of megabytes; of those with NCCL's buffers too, half as many."""

ERROR_MARKS = ("error:", "undefined reference", "ptxas fatal")
"""In the lines of compilers and linkers that say what is wrong."""


@dataclass(frozen=True)
class GangKind:
    """What gangs that stand by differ in.

    Attributes:
        world_size: number of ranks.
        join: whether they have a process group, as sources of the python dialect do.
        allow_processes: whether ranks may start programs.
        one_queue: whether ranks have a single hardware queue for their kernels, which is all that one stream uses, and
            halves what it takes to make and end a context (`benchmarks.gpu_contexts`).
    """

    world_size: int
    join: bool
    allow_processes: bool
    one_queue: bool = False


class LocalEvaluator:
    """Judges sources on this machine's CPU or GPUs.

    Args:
        key: secret that, with the seed, fixes the inputs; random by default. Give one to reproduce an evaluation.
        cache_dir: where compiled sources are kept; by default the user's cache folder.
        standby_gangs: gangs of each kind that stand by on GPUs; none keeps preparation in the evaluation itself.

    Processes are started when they are first needed and ended by `close`, at exit, or by the end of this process.
    """

    def __init__(
        self, *, key: bytes | None = None, cache_dir: Path | None = None, standby_gangs: int = STANDBY_GANGS
    ) -> None:
        self.key = key or secrets.token_bytes(16)
        self._cache = CompileCache((cache_dir or env_vars.cache_dir()) / "compile")
        self._lock = threading.RLock()
        self._device = DeviceGate()
        self._compilers = threading.BoundedSemaphore(host.processors())
        self._zygotes: dict[bool, Zygote] = {}
        self._references: dict[tuple[Device, int], ReferenceGang] = {}
        self._known = Known()
        self._standby: dict[GangKind, Standby] = {}
        self._ending: threading.Thread | None = None
        self._standby_gangs = standby_gangs
        self._quiet = QuietDevices()
        self._closed = False
        _EVALUATORS.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: object) -> Self:
        """It stands for processes of this machine, and so is shared: Gymnasium copies an environment's arguments."""
        return self

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Judges one source; see `Evaluator.evaluate`."""
        if self._closed:
            raise InfrastructureError("this evaluator has been closed")
        resolved = self.resolve(problem, source, config)
        findings = Findings(
            problem, source, resolved, execution_environment.describe(resolved.device, resolved.is_native)
        )
        say = progress or _say_nothing
        try:
            self._evaluate(findings, say)
        except Stopped:
            pass
        except InfrastructureError as error:
            findings.fail(Failure.INFRASTRUCTURE, f"this machine could not judge it: {error}")
            self._discard_broken()
        if findings.failed and not self._is_sound():
            # Ranks that fell silent because their zygote did are no fault of the candidate.
            findings.fail(Failure.INFRASTRUCTURE, "this evaluator was closed, or lost its processes, meanwhile")
            self._discard_broken()
        return findings.feedback()

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        """The configuration that `evaluate` would run under.

        Raises:
            ConfigError, SizeError: it cannot be met.
        """
        device = execution_environment.choose_device(config.device, config.language)
        return execution_environment.resolve_here(config, problem, detect_language(source, device))

    def _evaluate(self, findings: Findings, say: Progress) -> None:
        config = findings.config
        with findings.stage(Stage.STATIC, say):
            try:
                check_text(findings.source, config.language)
                findings.calls_torch_distributed = not config.is_native and calls_torch_distributed(findings.source)
            except Rejected as rejected:
                raise findings.stop(Failure.REJECTED, str(rejected)) from None
        with _in_turn(self._compilers, say), findings.stage(Stage.COMPILE, say):
            artifact = self._compile(findings)
        if config.until == "compile":
            return
        if artifact.binary is not None and not exports_solution(artifact.binary):
            expected = cpp_signature(findings.problem)
            raise findings.stop(
                Failure.LOAD_ERROR,
                f"the library exports no `solution`. Expected this signature and export:\n{expected}",
            )
        if not execution_environment.can_run(config.device):
            done = f"compiled for {DEFAULT_ARCHITECTURE}" if config.is_native else "imported"
            findings.note(f"{done}; this machine has no GPU, so it was not run")
            return
        with _in_turn(self._device, say):
            say(PREPARING)
            reference = self._reference(config.device, config.world_size)
            new_gang = functools.partial(self._new_gang, config, findings.source)
            quiet = self._quiet_devices(config.device)
            with Session(findings, artifact, reference, new_gang, quiet, self.key, self._known, say) as session:
                session.run()

    def _compile(self, findings: Findings) -> Artifact:
        config = findings.config
        if not config.is_native:
            zygote = self._zygote(trusted=False)
            artifact = build_python(findings.source, self._cache, zygote, config.compile_timeout_s)
        else:
            compile_source = compile_cuda if config.language == "cuda" else compile_native
            artifact = compile_source(findings.source, self._cache, config.compile_timeout_s)
        size = None if artifact.binary is None else len(artifact.binary)
        findings.compile = CompileReport(
            duration_s=artifact.duration_s,
            cached=artifact.cached,
            log=artifact.log,
            binary_bytes=size,
            kernels=artifact.kernels,
            transfers=artifact.transfers,
        )
        if not artifact.ok:
            what = "it does not compile" if config.is_native else "it cannot be imported"
            raise findings.stop(Failure.COMPILE_ERROR, f"{what}: {_first_error(artifact.log)}")
        return artifact

    def _zygote(self, *, trusted: bool) -> Zygote:
        with self._lock:
            if self._closed:
                raise InfrastructureError("this evaluator has been closed")
            for kind in (True, False):  # both at once: each takes seconds to import torch
                if kind not in self._zygotes or not self._zygotes[kind].alive:
                    self._zygotes[kind] = Zygote(trusted=kind)
            zygote = self._zygotes[trusted]
        zygote.wait_until_ready()
        return zygote

    def _reference(self, device: Device, world_size: int) -> ReferenceGang:
        zygote = self._zygote(trusted=True)
        with self._lock:
            gang = self._references.get((device, world_size))
            if gang is None or not gang.is_sound:
                gang = ReferenceGang(zygote, device, world_size, host.threads_per_rank(world_size))
                self._references[device, world_size] = gang
            return gang

    def _new_gang(self, config: ResolvedConfig, source: str) -> AbstractContextManager[CandidateGang]:
        """A gang for one candidate: forked on the CPU, one that stands by on GPUs."""
        allow_processes = config.language == "triton"  # it runs compilers at a kernel's first call
        if config.device == "cpu":
            return CandidateGang(self._zygote(trusted=False), "cpu", config.world_size, allow_processes=allow_processes)
        one_queue = config.is_native and not makes_streams(source)
        return self._gpu_gang(GangKind(config.world_size, not config.is_native, allow_processes, one_queue))

    @contextlib.contextmanager
    def _gpu_gang(self, kind: GangKind) -> Iterator[CandidateGang]:
        """A prepared gang. It is ended in the background, as freeing contexts takes a while, but before any timing."""
        gang = self._standby_for(kind).take() if self._standby_gangs else self._start_gpu_gang(kind)
        try:
            yield gang
        finally:
            self._end_in_background(gang)

    def _end_in_background(self, gang: CandidateGang) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._quiet.preparing())
            stack.callback(gang.close)
            if self._ending is not None:
                self._ending.join()
            ending = threading.Thread(target=stack.pop_all().close, name="pkb-ending")
            ending.start()
            self._ending = ending

    def _standby_for(self, kind: GangKind) -> Standby:
        with self._lock:
            if self._closed:
                raise InfrastructureError("this evaluator has been closed")
            if kind not in self._standby:
                start = functools.partial(self._start_gpu_gang, kind)
                gangs = max(1, self._standby_gangs // 2) if kind.join else self._standby_gangs
                self._standby[kind] = Standby(start, self._quiet, gangs)
            return self._standby[kind]

    def _start_gpu_gang(self, kind: GangKind) -> CandidateGang:
        zygote = self._zygote(trusted=False)
        gang = CandidateGang(zygote, "cuda", kind.world_size, allow_processes=kind.allow_processes)
        try:
            gang.prepare(join=kind.join, one_queue=kind.one_queue)
        except BaseException:
            gang.close()
            raise
        return gang

    def _quiet_devices(self, device: Device) -> AbstractContextManager[None]:
        """While held, no gang is prepared on the GPUs."""
        return self._quiet.timing() if device == "cuda" else contextlib.nullcontext()

    def _is_sound(self) -> bool:
        with self._lock:
            return not self._closed and all(zygote.alive for zygote in self._zygotes.values())

    def _discard_broken(self) -> None:
        """After a fault of ours, later evaluations begin with fresh gangs."""
        with self._lock:
            standby = list(self._standby.values())
            self._standby.clear()
        for gangs_of_a_kind in standby:
            gangs_of_a_kind.close()
        with self._lock:
            for gang in self._references.values():
                gang.close()
            self._references.clear()
            for kind, zygote in list(self._zygotes.items()):
                if not zygote.alive:
                    zygote.close()
                    del self._zygotes[kind]

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to somebody else until `resume`: texts are compiled, but no rank runs or is prepared.

        Gangs that stand by and the reference gang keep their memory.

        Args:
            timeout_s: how long to wait for the candidate that has the devices; None for as long as it takes.

        Returns:
            Whether nothing runs any more. If not, nothing new begins all the same.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # The gate first: the candidate inside may still need a gang, and has it ended in the background.
        if not self._device.shut(timeout_s):
            return False
        idle = self._quiet.pause(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self._closed:  # meanwhile: nothing may hold up its ending
            self.resume()
        return idle

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        self._quiet.resume()
        self._device.open()

    def warm_up(self, world_size: int, device: Device = "cpu") -> None:
        """Starts everything that the first evaluation would have to wait for."""
        self._zygote(trusted=False)
        self._reference(device, world_size)

    def close(self) -> None:
        """Ends every process; calling it again changes nothing.

        An evaluation that another thread is in the middle of ends as a fault of ours.
        """
        with self._lock:
            self._closed = True
            zygotes = list(self._zygotes.values())
            self._zygotes.clear()
            standby = list(self._standby.values())
            self._standby.clear()
        self.resume()  # whoever waits at the gate finds the evaluator closed
        for gangs_of_a_kind in standby:
            gangs_of_a_kind.stop()
        for zygote in zygotes:
            zygote.close()  # and with it its gangs: whoever waits for a rank hears that it is gone
        for gangs_of_a_kind in standby:
            gangs_of_a_kind.close()
        with self._device, self._lock:
            if self._ending is not None:
                self._ending.join()
            for gang in self._references.values():
                gang.close()
            self._references.clear()


def _first_error(log: str) -> str:
    """The line of a log that matters most: the first error of a compiler, the last line of a traceback."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nothing was said"]
    return next((line for line in lines if any(mark in line for mark in ERROR_MARKS)), lines[-1])


class _Turns(Protocol):
    """What evaluations take turns at."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


@contextlib.contextmanager
def _in_turn(turns: _Turns, say: Progress) -> Iterator[None]:
    if not turns.acquire(blocking=False):
        say(WAITING)
        turns.acquire()
    try:
        yield
    finally:
        turns.release()


_EVALUATORS: weakref.WeakSet[LocalEvaluator] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for evaluator in list(_EVALUATORS):
        evaluator.close()


def _say_nothing(_: str) -> None:
    """The default progress."""
