"""The race detector beside evaluations on GPUs: emulated runs on spare processors, and the cache of their verdicts.

Whatever it starts has a low priority, so that ranks, their threads and the evaluator have processors first.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator, build_key, emulated_key, library_of
from pkb_gym.engine.errors import InfrastructureError, PkbError
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.gangs.emulated_gang import EmulatedGang
from pkb_gym.engine.hardware import host
from pkb_gym.engine.hardware.division import division
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.race_check import JudgedRaces
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.compile import first_error
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.race_check import emulated_config, judge_races, not_judged, secret_of
from pkb_gym.engine.support.processors import on_processors

DEADLINE_S = 180.0
"""Time in seconds after which an evaluation does without a verdict. A run at size "tiny" takes a second or a few, and
compiling the emulator, once for a machine, half a minute."""

END_TIMEOUT_S = 10.0
"""Longest wait in seconds for a run that was cancelled; a compiler goes on, and its result is kept."""

PROCESSORS_PER_LANE, MAX_LANES = 8, 4
"""Processors of the machine for each run beside others, and the greatest number of such runs: each keeps one busy."""

RULES = 1
"""Version of how a run is judged and recorded; verdicts of another are not taken from the cache."""


class RaceDetector:
    """Judges sources side by side with evaluations; safe to use from several threads.

    Args:
        cache: Cache of compiled results and of verdicts.

    Processes are started when they are first needed, and ended by `close`.
    """

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        self._pool = GangPool(DeviceArbiter(), cache, standby_gangs=0, on_spare_processors=True)
        self._lanes: queue.SimpleQueue[int] = queue.SimpleQueue()
        for lane in range(max(1, min(MAX_LANES, host.processors() // PROCESSORS_PER_LANE))):
            self._lanes.put(lane)
        self._lock = threading.Lock()
        self._pending: set[PendingVerdict] = set()
        self._closed = False

    def start_processes(self) -> None:
        """Starts what runs share, and waits for nothing: each process takes seconds to import torch.

        Raises:
            InfrastructureError: It has been closed.
        """
        self._pool.start_zygotes()

    def begin(
        self, problem: Problem, source: Source, compiled: Artifact, config: ResolvedConfig, key: bytes
    ) -> PendingVerdict:
        """Begins to judge a source, and waits for nothing.

        Args:
            problem: Problem to be solved.
            source: Source of the candidate.
            compiled: Result of its compile for GPUs.
            config: Configuration of the evaluation.
            key: Secret key of the evaluator.
        """

        def judge(pending: PendingVerdict) -> JudgedRaces:
            return self._judge(pending, problem, source, compiled, config, secret_of(key))

        pending = PendingVerdict(judge, self._forget)
        with self._lock:
            if self._closed:
                pending.cancel()
            self._pending.add(pending)
        pending.start()
        return pending

    def close(self) -> None:
        """Ends every run and every process; calling it again changes nothing."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for one in pending:
            one.cancel()
        self._pool.stop()
        for one in pending:
            one.join(END_TIMEOUT_S)
        self._pool.close()

    def _forget(self, pending: PendingVerdict) -> None:
        with self._lock:
            self._pending.discard(pending)

    def _judge(
        self,
        pending: PendingVerdict,
        problem: Problem,
        source: Source,
        compiled: Artifact,
        config: ResolvedConfig,
        secret: bytes,
    ) -> JudgedRaces:
        """The verdict; what keeps this machine from one is a reason, and no failure of the evaluation."""
        if pending.is_cancelled:
            return not_judged("it was cancelled")
        try:
            emulated = emulated_config(problem, source, config, secret)
            environment = execution_environment.describe(emulated.device, emulated.dialect)
            feedback = FeedbackBuilder(problem, source, emulated, environment)
            is_same_size = config.size == emulated.size
            key = verdict_key(feedback, is_same_size)
            if (found := self._cached(key)) is not None:
                return found
            judged, lasts = self._run(pending, feedback, compiled, secret, is_same_size)
        except (PkbError, OSError) as error:
            return pending.timed(not_judged(str(error)))
        judged = pending.timed(judged)
        if lasts and not pending.is_cancelled:
            log = judged.model_dump_json()
            self._cache.put(key, Artifact(ok=True, log=log, duration_s=judged.report.duration_s))
        return judged

    def _cached(self, key: str) -> JudgedRaces | None:
        cached = self._cache.get(key)
        if cached is None:
            return None
        found = JudgedRaces.model_validate_json(cached.log)
        return found.model_copy(update={"report": found.report.model_copy(update={"cached": True})})

    def _run(
        self, pending: PendingVerdict, feedback: FeedbackBuilder, compiled: Artifact, secret: bytes, is_same_size: bool
    ) -> tuple[JudgedRaces, bool]:
        """The verdict of an emulated run, and whether another run would have the same.

        Raises:
            PkbError: This machine failed.
        """
        timeout_s = feedback.config.compile_timeout_s
        artifact = library_of(compiled, feedback.source.text, self._cache, timeout_s)
        if not artifact.ok:
            return not_judged(f"it does not compile for emulated GPUs: {first_error(artifact.log)}"), False
        emulator = build_emulator(self._cache, low_priority=True)
        lane = self._lanes.get()
        try:
            with (
                self._pool.emulated_gang(feedback.config, feedback.source.text, emulator) as gang,
                pending.killing(gang),
            ):
                try:
                    with self._pool.new_run(feedback, artifact, secret, lambda: gang, lane) as run:
                        judged = judge_races(run, gang, is_same_size=is_same_size)
                except InfrastructureError:
                    if not pending.is_cancelled:
                        self._pool.discard_broken()
                    raise
            if not self._pool.is_sound:
                self._pool.discard_broken()
                raise InfrastructureError("processes of the race detector were lost")
            return judged
        finally:
            self._lanes.put(lane)


class PendingVerdict:
    """A verdict that a thread of its own finds.

    Args:
        judge: Function that finds it; it is given this object, and reports to it what a cancellation has to end.
        forget: Function that is called with this object at the end.
    """

    def __init__(
        self, judge: Callable[[PendingVerdict], JudgedRaces], forget: Callable[[PendingVerdict], None]
    ) -> None:
        self._judge, self._forget = judge, forget
        self._began_s = time.monotonic()
        self._verdict = not_judged("the race detector failed")
        self._lock = threading.Lock()
        self._gang: EmulatedGang | None = None
        self.is_cancelled = False
        self._thread = threading.Thread(target=self._work, name="pkb-races", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def _work(self) -> None:
        try:
            with on_processors(division().working):
                self._verdict = self._judge(self)
        finally:
            self._forget(self)

    def result(self) -> JudgedRaces:
        """The verdict; "not_judged" where it is not there `DEADLINE_S` after the beginning. The run is ended then."""
        self._thread.join(max(0.0, self._began_s + DEADLINE_S - time.monotonic()))
        if not self._thread.is_alive():
            return self._verdict
        self.cancel()
        return self.timed(not_judged(f"the race detector had not finished after {DEADLINE_S:g} s"))

    def timed(self, judged: JudgedRaces) -> JudgedRaces:
        """The verdict with the time since the beginning."""
        duration_s = time.monotonic() - self._began_s
        return judged.model_copy(update={"report": judged.report.model_copy(update={"duration_s": duration_s})})

    @contextlib.contextmanager
    def killing(self, gang: EmulatedGang) -> Iterator[None]:
        """Has a cancellation kill the gang meanwhile.

        Raises:
            InfrastructureError: It was cancelled.
        """
        with self._lock:
            if self.is_cancelled:
                raise InfrastructureError("it was cancelled")
            self._gang = gang
        try:
            yield
        finally:
            with self._lock:
                self._gang = None

    def cancel(self) -> None:
        """Ends the run, whose verdict nobody wants; calling it again changes nothing."""
        with self._lock:
            self.is_cancelled = True
            if self._gang is not None:
                self._gang.kill()

    def join(self, timeout_s: float) -> None:
        """Waits until the thread has ended, at most so many seconds."""
        self._thread.join(timeout_s)


def verdict_key(feedback: FeedbackBuilder, is_same_size: bool) -> str:
    """The key of a verdict in the cache: all that it follows from but the schedules, which a key draws for each source.

    Args:
        feedback: Builder of the emulated run.
        is_same_size: Whether the evaluation itself has that run's size.

    Raises:
        InfrastructureError: There is no compiler.
    """
    config = feedback.config
    return CompileCache.key(
        race_check=[RULES, config.race_check],
        source=emulated_key(feedback.source.text),
        emulator=build_key(),
        problem=feedback.problem_sha256,
        workload=[config.world_size, config.size, is_same_size, config.dtype, config.protocol, config.trials],
    )
