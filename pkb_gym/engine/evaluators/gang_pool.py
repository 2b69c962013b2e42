"""The processes of an evaluator: zygotes, reference gangs, and gangs for candidates."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers
from pkb_gym.engine.compile.library_headers import is_started
from pkb_gym.engine.compile.own_library import build_for_host
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.standby import Standby
from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.gangs.candidate_ranks import CandidateRanks
from pkb_gym.engine.gangs.emulated_gang import EmulatedGang
from pkb_gym.engine.gangs.handover_ends import HandoverLibraries
from pkb_gym.engine.gangs.reference_gang import ReferenceGang
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import Device, ResolvedConfig
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.static import makes_streams
from pkb_gym.engine.wire.orders import Dialect

STANDBY_GANGS = 8
"""Each holds a context for every rank, some hundreds of megabytes: fewer where ranks share GPUs, half as many of
those with NCCL's buffers, and none of those for NVSHMEM and NCCL, which few kernels ask for."""


STACK_TRACE = ("debugging/stack_trace.cpp",)
PRELOADED = ("rankside/gloo_loop.cpp", "rankside/tcp_pace.cpp", "rankside/exception_places.cpp")
"""Libraries of ranks; see there."""


PYTHON_IMPORTS = ("torch.distributed._symmetric_memory", "torch.utils.cpp_extension")
TRITON_IMPORTS = ("triton", "triton.language")
"""Modules that sources of the python dialect use, those of language triton the latter, too: gangs that stand by have
imported them before a source is known."""


@dataclass(frozen=True)
class GangKind:
    """The key of a standby gang.

    Attributes:
        world_size: Number of ranks.
        dialect: Dialect of the candidates that they serve; those of the python dialect have a process group.
        allow_processes: Whether ranks may start programs.
        one_queue: Whether ranks have a single hardware queue for their kernels, which is all that one stream uses, and
            halves what it takes to make and end a context (benchmarks/README.md).
        ranks_per_gpu: Number of neighbouring ranks that share a GPU.
        all_gpus: Whether native ranks see their peers' GPUs too, as NVSHMEM and NCCL need them.
    """

    world_size: int
    dialect: Dialect
    allow_processes: bool
    one_queue: bool = False
    ranks_per_gpu: int = 1
    all_gpus: bool = False


def _imports_of(kind: GangKind) -> tuple[str, ...]:
    if kind.dialect != "python":
        return ()
    return (*PYTHON_IMPORTS, *TRITON_IMPORTS) if kind.allow_processes else PYTHON_IMPORTS


class GangPool:
    """Starts processes when they are first needed; safe to use from several threads.

    Args:
        arbiter: Keeps preparing gangs and timing apart.
        cache: Cache of compiled handovers.
        standby_gangs: Gangs of each kind that stand by on GPUs, at least 0; with 0, each is prepared when it is needed.
        on_spare_processors: Whether its processes leave processors to whatever else wants them; each rank then computes
            with a single thread.
    """

    def __init__(
        self,
        arbiter: DeviceArbiter,
        cache: CompileCache,
        standby_gangs: int = STANDBY_GANGS,
        *,
        on_spare_processors: bool = False,
    ) -> None:
        self._on_spare_processors = on_spare_processors
        self._arbiter, self._cache = arbiter, cache
        self._standby_gangs = standby_gangs
        self._lock = threading.RLock()
        self._zygotes: dict[bool, Zygote] = {}
        self._references: dict[tuple[Device, int, int, int], ReferenceGang] = {}
        self._suspect_lanes: set[int] = set()
        self._handovers: dict[Device, HandoverLibraries] = {}
        self._stack_trace: bytes | None = None
        self._standby: dict[GangKind, Standby] = {}
        self._ending: threading.Thread | None = None
        self._begins_ending = threading.Lock()
        self._closed = False

    def zygote(self, *, trusted: bool) -> Zygote:
        """A zygote that is ready to fork.

        Raises:
            InfrastructureError: It did not start, or the pool has been closed.
        """
        with self._lock:
            self.start_zygotes()
            zygote = self._zygotes[trusted]
        try:
            zygote.wait_until_ready()
        except InfrastructureError:
            self._check_open()  # closing ends a zygote that is still starting
            raise
        return zygote

    def start_zygotes(self) -> None:
        """Starts both zygotes, if need be, and waits for neither: each takes seconds to import torch.

        Raises:
            InfrastructureError: The pool has been closed.
        """
        with self._lock:
            self._check_open()
            for kind in (True, False):
                if kind in self._zygotes and not self._zygotes[kind].alive:
                    self._zygotes.pop(kind).close()  # and its folder goes
                if kind not in self._zygotes:
                    self._zygotes[kind] = Zygote(
                        trusted=kind, preloaded=self._preloaded(), low_priority=self._on_spare_processors
                    )

    def _preloaded(self) -> bytes | None:
        """The library for efficient waits of CPU collectives, and quick throws; both are slower without a compiler."""
        try:
            return build_for_host(PRELOADED, self._cache)
        except InfrastructureError:
            return None

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError("this evaluator has been closed")

    def check_hidden(self, folder: Path) -> None:
        """Refuses a problem whose folder, with what may be an answer, the sandbox that has been started shows.

        Args:
            folder: Folder of the problem.

        Raises:
            ConfigError: Candidates could read it.
        """
        if self.zygote(trusted=False).shows(folder):
            raise ConfigError(
                f"kernels could read {folder}: it was registered after this evaluator had started its sandbox; "
                "register problems before the first evaluation, or open another evaluator"
            )

    def handovers(self, device: Device) -> HandoverLibraries:
        """The compiled handovers of a device.

        Raises:
            InfrastructureError: They could not be compiled.
        """
        with self._lock:
            self._check_open()
            if device not in self._handovers:
                self._handovers[device] = build_handovers(device, self._cache)
            return self._handovers[device]

    def stack_trace(self) -> bytes:
        """The compiled library that records the call stack of a crashed rank.

        Raises:
            InfrastructureError: It could not be compiled.
        """
        with self._lock:
            if self._stack_trace is None:
                self._stack_trace = build_for_host(STACK_TRACE, self._cache)
            return self._stack_trace

    def reference(self, device: Device, world_size: int, ranks_per_gpu: int = 1, lane: int = 0) -> ReferenceGang:
        """The reference gang of a device and world size.

        Args:
            device: Device of its ranks.
            world_size: Number of ranks.
            ranks_per_gpu: Number of neighbouring ranks that share a GPU.
            lane: Number of the gang, for those that judge side by side with gangs of the same kind.

        Raises:
            InfrastructureError: It could not be started.
        """
        kind = device, world_size, ranks_per_gpu, lane
        zygote = self.zygote(trusted=True)
        with self._lock:
            if lane in self._suspect_lanes:
                self._suspect_lanes.remove(lane)
                self._close_references(lane)
            gang = self._references.get(kind)
            if gang is None or not gang.is_sound:
                libraries = self.handovers(device)
                threads = 1 if self._on_spare_processors else host.threads_per_rank(world_size)
                gang = ReferenceGang(zygote, device, world_size, threads, libraries, ranks_per_gpu)
                self._references[kind] = gang
            return gang

    def new_run(
        self,
        feedback: FeedbackBuilder,
        artifact: Artifact,
        key: bytes,
        new_gang: Callable[[], AbstractContextManager[CandidateRanks]],
        lane: int = 0,
    ) -> CandidateRun:
        """A run of a candidate beside the reference gang of its configuration.

        Args:
            feedback: Builder that receives the reports.
            artifact: Compiled candidate.
            key: Secret key of the evaluator.
            new_gang: Context manager that lends a gang for the candidate.
            lane: Number of the reference gang, as in `reference`.

        Raises:
            ConfigError: Candidates could read the problem's folder.
            InfrastructureError: This machine failed.
        """
        config = feedback.config
        self.check_hidden(Path(feedback.problem.declared_in).parent)
        reference = self.reference(config.host_device, config.world_size, config.ranks_per_gpu, lane)
        handovers = self.handovers(config.host_device)
        stack_trace = self.stack_trace() if config.dialect == "native" else None
        return CandidateRun(feedback, artifact, reference, new_gang, handovers, key, stack_trace)

    def emulated_gang(self, config: ResolvedConfig, source: str, emulator: bytes) -> EmulatedGang:
        """The gang of a candidate on emulated GPUs: one process for all ranks.

        Args:
            config: Configuration of the evaluation.
            source: Source of the candidate.
            emulator: Compiled emulator.
        """
        detects = config.race_check != "off"
        is_strict = config.race_check == "strict"
        zygote = self.zygote(trusted=False)
        return EmulatedGang(
            zygote,
            config.world_size,
            emulator,
            detect_races=detects,
            strict=is_strict,
            starts_libraries=is_started(source),
        )

    def candidate_gang(self, config: ResolvedConfig, source: str) -> AbstractContextManager[CandidateGang]:
        """A gang for one candidate: forked on the CPU, one that stands by on GPUs.

        Args:
            config: Configuration of the evaluation.
            source: Source of the candidate.
        """
        allow_processes = config.language == "triton"  # it runs compilers at a kernel's first call
        if config.device == "cpu":
            zygote = self.zygote(trusted=False)
            return CandidateGang(zygote, "cpu", config.world_size, allow_processes=allow_processes)
        all_gpus = config.dialect == "native" and is_started(source)
        one_queue = config.dialect == "native" and not makes_streams(source) and not all_gpus
        kind = GangKind(config.world_size, config.dialect, allow_processes, one_queue, config.ranks_per_gpu, all_gpus)
        return self._gpu_gang(kind)

    @contextlib.contextmanager
    def _gpu_gang(self, kind: GangKind) -> Iterator[CandidateGang]:
        """A prepared gang. It is ended in the background, as freeing contexts takes a while, but before any timing."""
        gang = self._standby_for(kind).take()
        try:
            yield gang
        finally:
            self._end_in_background(gang)

    def _end_in_background(self, gang: CandidateGang) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._arbiter.preparing())
            stack.callback(gang.close)
            with self._begins_ending:
                if self._ending is not None:
                    self._ending.join()
                ending = threading.Thread(target=stack.pop_all().close, name="pkb-ending")
                ending.start()
                self._ending = ending

    def wait_for_endings(self) -> None:
        """Waits until the gangs that are being ended in the background have let go of their devices."""
        with self._begins_ending:
            if self._ending is not None:
                self._ending.join()

    def _standby_for(self, kind: GangKind) -> Standby:
        with self._lock:
            self._check_open()
            if kind not in self._standby:
                start = functools.partial(self._start_gpu_gang, kind)
                buffers = 2 if kind.dialect == "python" else 1
                gangs = 0 if kind.all_gpus else ceil(self._standby_gangs / (buffers * kind.ranks_per_gpu))
                self._standby[kind] = Standby(start, self._arbiter, gangs)
            return self._standby[kind]

    def _start_gpu_gang(self, kind: GangKind) -> CandidateGang:
        zygote = self.zygote(trusted=False)
        gang = CandidateGang(
            zygote,
            "cuda",
            kind.world_size,
            allow_processes=kind.allow_processes,
            ranks_per_gpu=kind.ranks_per_gpu,
        )
        try:
            gang.prepare(kind.dialect, one_queue=kind.one_queue, imports=_imports_of(kind), all_gpus=kind.all_gpus)
        except BaseException:
            gang.close()
            raise
        return gang

    @property
    def is_sound(self) -> bool:
        """Whether it is open and every zygote is alive: if not, ranks may have failed through no candidate."""
        with self._lock:
            return not self._closed and all(zygote.alive for zygote in self._zygotes.values())

    def discard_broken(self) -> None:
        """After an infrastructure failure, later evaluations begin with fresh gangs.

        A reference gang, which an evaluation may be using, is ended when one of its lane is next asked for.
        """
        for stock in self._take_standby():
            stock.close()
        with self._lock:
            self._suspect_lanes |= {lane for *_, lane in self._references}
            for kind, zygote in list(self._zygotes.items()):
                if not zygote.alive:
                    zygote.close()
                    del self._zygotes[kind]

    def _close_references(self, lane: int | None = None) -> None:
        """Ends the gangs of a lane, by default of all; called with the lock held."""
        for kind in [kind for kind in self._references if lane in (None, kind[-1])]:
            self._references.pop(kind).close()

    def _take_standby(self) -> list[Standby]:
        with self._lock:
            stocks = list(self._standby.values())
            self._standby.clear()
            return stocks

    def stop(self) -> None:
        """Ends zygotes, and gangs with them; an evaluation in the middle of something ends as infrastructure failure.

        Calls that wait for a rank fail with the rank's end. `close` must follow.
        """
        with self._lock:
            self._closed = True
            zygotes = list(self._zygotes.values())
            self._zygotes.clear()
            stocks = list(self._standby.values())
        for stock in stocks:
            stock.stop()
        for zygote in zygotes:
            zygote.close()

    def close(self) -> None:
        """Waits until everything has ended; calling it again changes nothing.

        No candidate may be in the middle of something.
        """
        for stock in self._take_standby():
            stock.close()
        with self._lock:
            if self._ending is not None:
                self._ending.join()
            self._close_references()
            for libraries in self._handovers.values():
                libraries.close()
            self._handovers.clear()
