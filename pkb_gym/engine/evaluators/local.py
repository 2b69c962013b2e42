"""The evaluator of this machine: a loop over stages.

    static -> compile -> run + check -> time -> profile, then the roofline

Texts are compiled side by side; from loading on, one candidate at a time has the machine, except that candidates that
are only checked run beside each other while none is timed. On GPUs the race detector judges native sources beside these
stages, and Triton's GSan Triton sources after them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol, Self

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator, is_built
from pkb_gym.engine.debugging.debugger import DebugFolders, Debugger
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import second_judging
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.gang_pool import STANDBY_GANGS, GangPool
from pkb_gym.engine.evaluators.gsan_check import add_verdict_of_gsan, awaits_gsan
from pkb_gym.engine.evaluators.lanes import MAX_GPU_LANES, Lanes, Need
from pkb_gym.engine.evaluators.race_detector import RaceDetector
from pkb_gym.engine.gangs.candidate_ranks import CandidateRanks
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.hardware.division import division
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import Device, EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.replay_key import KEY_BYTES, new_nonce, split
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.compile import check_loadable, compile_source
from pkb_gym.engine.stages.emulate import judge_emulated
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder, Stopped
from pkb_gym.engine.stages.heap_layout import lay_out
from pkb_gym.engine.stages.machine_sharing import work_beside_others
from pkb_gym.engine.stages.pipeline import judge
from pkb_gym.engine.stages.progress import BUILDING, CHECKING_RACES, PREPARING, WAITING, Progress
from pkb_gym.engine.stages.static import check_statically
from pkb_gym.engine.stages.stopwatch import ENDING, Stopwatch
from pkb_gym.engine.support.processors import on_processors


class LocalEvaluator:
    """Judges sources on this machine's CPU or GPUs.

    Args:
        key: Secret that, with the seed, fixes the inputs, those of timed calls with the source, too; random by default.
            Give one to reproduce an evaluation.
        cache_dir: Folder of compiled sources; by default the user's cache folder.
        cache: Cache of compiled sources, instead of one in `cache_dir`.
        standby_gangs: Gangs of each kind that stand by on GPUs; 0 keeps preparation in the evaluation itself.
        folders: Folders for what can be examined afterwards; none by default.

    Processes are started when they are first needed and ended by `close`, at exit, or by the end of this process.
    """

    def __init__(
        self,
        *,
        key: bytes | None = None,
        cache_dir: Path | None = None,
        cache: CompileCache | None = None,
        standby_gangs: int = STANDBY_GANGS,
        folders: DebugFolders | None = None,
    ) -> None:
        self.key = key or secrets.token_bytes(KEY_BYTES)
        self._compile_cache = cache or CompileCache.in_folder(cache_dir)
        self._compilers = threading.BoundedSemaphore(host.processors())
        self._arbiter, self._lanes = DeviceArbiter(), Lanes(host.processors())
        self._pool = GangPool(self._arbiter, self._compile_cache, standby_gangs)
        self._races = RaceDetector(self._compile_cache)
        self._baseline_cache = BaselineCache()
        self._folders = folders or DebugFolders()
        self._closed = False
        _EVALUATORS.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: object) -> Self:
        """It stands for processes of this machine, and so is shared: Gymnasium copies an environment's arguments."""
        return self

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a LocalEvaluator owns processes of this machine and cannot be pickled; name it where an environment is to "
            "be (evaluator='local', or a name of `add_evaluator`), or take a RemoteEvaluator"
        )

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        """Judges one source; see `Evaluator.evaluate`. The inputs follow from `replay_key` where there is one.

        A candidate whose gang lost its leader, or a rank while the kernel ended processes for memory, is judged once
        more; if that happens again, it is the candidate's own failure. So is a killed rank at once where the machine
        has no such record, since a second judging is a second chance. Each attempt has timed inputs of its own, as a
        candidate can leave those of the one before, and their results, where the next finds them. What failed beside
        another candidate on the same GPUs, for lack of memory or time, is judged once more, alone. So is a candidate
        beside which the reference gang had no memory: if it has none again, though there was enough before, the
        failure is the candidate's.
        """
        stopwatch, report = Stopwatch(), progress or _ignore_progress
        key, nonce = (self.key, new_nonce()) if replay_key is None else split(replay_key)
        feedback, again = self._judge_once(problem, source, config, (key, nonce), report, stopwatch)
        if again:
            self._pool.wait_for_endings()  # what is being ended holds memory
            feedback, _ = self._judge_once(problem, source, config, (key, new_nonce()), report, stopwatch, alone=True)
        return feedback

    def _judge_once(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        key_and_nonce: tuple[bytes, str],
        report: Progress,
        stopwatch: Stopwatch,
        *,
        alone: bool = False,
    ) -> tuple[Feedback, bool]:
        """The feedback, and whether it is to be judged once more."""
        key, nonce = key_and_nonce
        if self._closed:
            raise InfrastructureError("this evaluator has been closed")
        try:
            parsed, resolved = execution_environment.resolve_source(config, problem, source)
            environment = execution_environment.describe(resolved.device, resolved.dialect)
            feedback = FeedbackBuilder(problem, parsed, resolved, environment, stopwatch, nonce)
        except OSError as error:
            raise InfrastructureError(f"this machine could not judge it: {error}") from error
        killed = took_the_memory = False
        was_free = alone and second_judging.memory_is_free(feedback)
        try:
            self._run_stages(feedback, key, report, alone=alone)
        except Stopped as stopped:
            killed = stopped.killed
        except (InfrastructureError, OSError) as error:  # OSError: descriptors, processes or disk are used up
            second_judging.blame(feedback, error, was_free=was_free)
            took_the_memory = second_judging.took_the_memory(feedback, error)
            self._pool.discard_broken()
        if feedback.failed and not self._pool.is_sound:
            # Ranks that fell silent because their zygote did are no failure of the candidate.
            feedback.fail(Failure.INFRASTRUCTURE, "this evaluator was closed, or lost its processes, meanwhile")
            self._pool.discard_broken()
            killed = took_the_memory = False
        return feedback.build(), killed or took_the_memory or second_judging.may_be_a_neighbours(feedback)

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        """The configuration that `evaluate` would run under.

        Raises:
            ConfigError, SizeError: It cannot be met.
        """
        return execution_environment.resolve_source(config, problem, source)[1]

    def _run_stages(self, feedback: FeedbackBuilder, key: bytes, report: Progress, *, alone: bool) -> None:
        config = feedback.config
        with feedback.stage(Stage.STATIC, report):
            check_statically(feedback)
        runs = config.until != "compile" and execution_environment.can_run(config.device)
        if runs:
            self._pool.start_zygotes()  # they load torch while the compiler runs
            if _has_emulated_run(config):
                with on_processors(division().working):
                    self._races.start_processes()
        # Compilers take processors from what ranks of the CPU compute with.
        beside = work_beside_others(report) if config.host_device == "cpu" else contextlib.nullcontext()
        # Compilers of python sources are forked from a zygote, as ranks are.
        where = division().working if config.dialect == "native" else frozenset()
        with (
            _in_turn(self._compilers, feedback, report),
            feedback.waiting_for(beside),
            feedback.stage(Stage.COMPILE, report),
            on_processors(where),
        ):
            artifact = compile_source(
                feedback, self._compile_cache, functools.partial(self._pool.zygote, trusted=False)
            )
        if config.until == "compile":
            return
        check_loadable(feedback, artifact)
        if not execution_environment.can_run(config.device):
            raise feedback.stop(Failure.COMPILED_ONLY, execution_environment.compiled_only(config.dialect))
        with self._judged_races(feedback, artifact, key, report):
            self._run_ranks(feedback, artifact, key, report, alone=alone)

    @contextlib.contextmanager
    def _judged_races(
        self, feedback: FeedbackBuilder, artifact: Artifact, key: bytes, report: Progress
    ) -> Iterator[None]:
        """Has the race detector judge meanwhile, beside GPUs; its verdict counts where nothing else has failed."""
        if not _has_emulated_run(feedback.config):
            yield
            return
        pending = self._races.begin(feedback.problem, feedback.source, artifact, feedback.config, key)
        try:
            yield
            if not feedback.failed:
                report(CHECKING_RACES)
                with feedback.stopwatch.phase(CHECKING_RACES):
                    judged = pending.result()
                if self._closed:
                    raise InfrastructureError("this evaluator was closed meanwhile")
                feedback.add_race_check(judged)
        finally:
            pending.cancel()

    def _run_ranks(
        self, feedback: FeedbackBuilder, artifact: Artifact, key: bytes, report: Progress, *, alone: bool
    ) -> None:
        config = feedback.config
        idle_devices = self._arbiter.timing if config.device == "cuda" else contextlib.nullcontext
        with self._turn(feedback, report, alone=alone) as lane, contextlib.ExitStack() as ranks:
            try:
                report(PREPARING)
                if config.device == "emulated":
                    self._judge_emulated(feedback, artifact, key, report, ranks, lane)
                    return
                with feedback.stopwatch.phase(PREPARING):
                    new_gang = functools.partial(self._pool.candidate_gang, config, feedback.source.text)
                    run = ranks.enter_context(self._new_run(feedback, artifact, key, new_gang, lane))
                judge(run, self._baseline_cache, idle_devices, report)
                if awaits_gsan(feedback):
                    ranks.close()
                    add_verdict_of_gsan(self._pool, feedback, artifact, key, lane, report)
                    if self._closed:
                        raise InfrastructureError("this evaluator was closed meanwhile")
            finally:
                with feedback.stopwatch.phase(ENDING):
                    ranks.close()

    @contextlib.contextmanager
    def _turn(self, feedback: FeedbackBuilder, report: Progress, *, alone: bool) -> Iterator[int]:
        """Waits for the turn of a candidate; yields the number of its lane.

        One that is only checked shares the devices with others, and holds timings up meanwhile.
        """
        config = feedback.config
        if config.until != "check" or config.device == "emulated" or config.debug:
            with _in_turn(self._arbiter, feedback, report), self._lane(feedback, report, alone=alone) as lane:
                yield lane
            return
        while True:
            if self._arbiter.is_paused:
                report(WAITING)
                with feedback.stopwatch.phase(WAITING):
                    self._arbiter.wait_for_resume()
            with (
                self._lane(feedback, report, alone=alone) as lane,
                feedback.waiting_for(work_beside_others(report)),
                feedback.waiting_for(self._arbiter.checking()) as begins,
            ):
                if begins:
                    yield lane
                    return

    @contextlib.contextmanager
    def _lane(self, feedback: FeedbackBuilder, report: Progress, *, alone: bool) -> Iterator[int]:
        need, nbytes, most = _room_of(feedback)
        room = need, nbytes, 1 if alone else most
        if not self._lanes.is_free(*room):
            report(WAITING)
        with feedback.waiting_for(self._lanes.taken(*room)) as lane:
            try:
                yield lane
            finally:
                feedback.had_neighbours = self._lanes.was_shared(lane)

    def _judge_emulated(
        self,
        feedback: FeedbackBuilder,
        artifact: Artifact,
        key: bytes,
        report: Progress,
        ranks: contextlib.ExitStack,
        lane: int,
    ) -> None:
        """The same where one process stands for all ranks."""
        config = feedback.config
        with feedback.stopwatch.phase(PREPARING):
            if not is_built(self._compile_cache):
                report(BUILDING)
            gang = ranks.enter_context(
                self._pool.emulated_gang(config, feedback.source.text, build_emulator(self._compile_cache))
            )
            run = ranks.enter_context(self._new_run(feedback, artifact, key, lambda: gang, lane))
        judge_emulated(run, gang, report)

    def _new_run(
        self,
        feedback: FeedbackBuilder,
        artifact: Artifact,
        key: bytes,
        new_gang: Callable[[], AbstractContextManager[CandidateRanks]],
        lane: int,
    ) -> CandidateRun:
        run = self._pool.new_run(feedback, artifact, key, new_gang, lane)
        run.observer = Debugger(run, self._folders, self._compile_cache)
        return run

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to another program until `resume`: texts are compiled, but no rank runs or is prepared.

        Gangs that stand by and the reference gang keep their memory.

        Args:
            timeout_s: Longest wait in seconds for the candidate that has the devices; None for no limit.

        Returns:
            Whether nothing runs any more. If not, nothing new begins all the same.
        """
        idle = self._arbiter.pause(timeout_s)
        if self._closed:  # meanwhile: nothing may hold up its ending
            self.resume()
        return idle

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        self._arbiter.resume()

    def warm_up(self, world_size: int, device: Device = "cpu") -> None:
        """Starts everything that the first evaluation would have to wait for."""
        self._pool.zygote(trusted=False)
        self._pool.reference(device, world_size)

    def close(self) -> None:
        """Ends every process; calling it again changes nothing.

        An evaluation that another thread is in the middle of ends as an infrastructure failure.
        """
        self._closed = True
        self.resume()  # evaluations that wait for the devices find the evaluator closed
        self._races.close()
        self._pool.stop()
        self._arbiter.acquire()
        try:
            self._lanes.wait_until_empty()
            self._pool.close()
        finally:
            self._arbiter.release()


def _room_of(feedback: FeedbackBuilder) -> tuple[Need, int, int | None]:
    """The need of a candidate, the memory of its device, and the number of candidates that may be on it at a time."""
    config = feedback.config
    nbytes = lay_out(feedback.problem, config).memory_bytes
    if config.device != "cuda":
        return Need(config.world_size, nbytes), host.memory_total_bytes(), None
    processors = execution_environment.PROCESSORS_PER_GPU * config.world_size // config.ranks_per_gpu
    return Need(processors, nbytes), gpus.memory_bytes() or 0, MAX_GPU_LANES


def _has_emulated_run(config: ResolvedConfig) -> bool:
    """Whether the race detector judges beside GPUs; on emulated ones it is part of the check."""
    return config.device == "cuda" and config.dialect == "native" and config.race_check != "off"


class _Turns(Protocol):
    """A lock by which evaluations take turns."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


@contextlib.contextmanager
def _in_turn(turns: _Turns, feedback: FeedbackBuilder, report: Progress) -> Iterator[None]:
    if not turns.acquire(blocking=False):
        report(WAITING)
        with feedback.stopwatch.phase(WAITING):
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


def _ignore_progress(_: str) -> None:
    """The default progress."""
