"""The steps of evaluations: the worker that takes each, and retries when a worker fails.

    compile    a Ray task on any node; skipped where the artifact is in the object store
    check      on a shared gang
    the rest   on an exclusive gang, which begins with a check of its own before it times

A step whose node, worker or evaluator failed is taken again, elsewhere where there is an elsewhere. Each attempt has a
name, and a reply counts for the attempt that waits for it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pkb_gym.cluster.artifacts import compile_identity
from pkb_gym.cluster.connection import in_one_line
from pkb_gym.cluster.evaluation import PoolEvaluation
from pkb_gym.cluster.lane import Lane, ReadyGang
from pkb_gym.cluster.records import CompileSpec, Order, Purpose, StepReply, from_text, to_text
from pkb_gym.cluster.settings import PoolSettings
from pkb_gym.cluster.waiting import Slots
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.service import ErrorReport
from pkb_gym.engine.stages.progress import PREPARING, WAITING

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

logger = logging.getLogger(__name__)

MAX_ARTIFACTS = 4096
"""Maximum number of artifacts in the object store; those that were used longest ago are dropped first."""

MAX_FAULTS = 2
"""Infrastructure failures in a row after which a gang is replaced."""

PAUSE_S = 0.5
"""Before a further attempt, times the number of attempts so far."""

FindLane = Callable[[PoolEvaluation, Purpose], Lane | None]


class _WorkerLost(Exception):
    """Raised when a worker ended, or took too long, in the middle of a step."""


class Steps:
    """Takes the steps of evaluations; for one event loop.

    Args:
        settings: Settings of the pool.
        compile_spec: Arguments of compile tasks.
        find_lane: Returns the lane of an evaluation and purpose; None where shared gangs are switched off.
        runs_here: Whether the cluster can have devices for an evaluation; otherwise it is compiled alone.
        pool: Handle of the pool's own actor, for reports of stages.

    Attributes:
        compilers: Slots of compile tasks.
        retries, compiles, exclusive_steps, queue_s, durations_s: Counts and sums of `PoolStatus`.
    """

    def __init__(
        self,
        settings: PoolSettings,
        compile_spec: CompileSpec,
        find_lane: FindLane,
        runs_here: Callable[[PoolEvaluation], bool],
        pool: ActorHandle[Any],
    ) -> None:
        self._settings, self._find_lane, self._runs_here, self._pool = settings, find_lane, runs_here, pool
        self._spec = to_text(compile_spec)
        self._artifacts: OrderedDict[str, Any] = OrderedDict()
        self._compiling: dict[str, asyncio.Event] = {}
        self._compile_task: Any = None
        self.compilers = Slots(1)
        self.retries = self.compiles = self.exclusive_steps = 0
        self.queue_s = 0.0
        self.durations_s: Counter[str] = Counter()

    @property
    def artifacts(self) -> int:
        """Number of sources whose artifacts are in the object store."""
        return len(self._artifacts)

    async def take_all(self, evaluation: PoolEvaluation) -> StepReply:
        """Takes the steps of an evaluation until one of them ends it."""
        identity = compile_identity(evaluation.request)
        runs = self._runs_here(evaluation)
        last = evaluation.request.config.until
        if not runs or last == "compile" or identity not in self._artifacts:
            reply = await self._compile(evaluation, identity, ends=not runs)
            if reply is not None and reply.is_final:
                return reply
        shared = self._find_lane(evaluation, "shared")
        if shared is not None:
            reply = await self._with_retries(evaluation, lambda: self._on_gang(evaluation, identity, shared, "check"))
            if reply.is_final:
                return reply
        exclusive = self._find_lane(evaluation, "exclusive")
        assert exclusive is not None, "there is a limit of at least one"
        self.exclusive_steps += 1
        return await self._with_retries(evaluation, lambda: self._on_gang(evaluation, identity, exclusive, None))

    async def _compile(self, evaluation: PoolEvaluation, identity: str, *, ends: bool) -> StepReply | None:
        """Compiles a source; None where an equal one was compiled meanwhile and later stages are requested."""
        while (others := self._compiling.get(identity)) is not None:
            evaluation.enter(WAITING)
            await others.wait()
            if identity in self._artifacts and not ends and evaluation.request.config.until != "compile":
                return None
        self._compiling[identity] = asyncio.Event()
        try:
            return await self._with_retries(evaluation, lambda: self._compile_once(evaluation, identity, ends=ends))
        finally:
            self._compiling.pop(identity).set()

    async def _compile_once(self, evaluation: PoolEvaluation, identity: str, *, ends: bool) -> StepReply:
        order = self._order(evaluation, None if ends else "compile")
        evaluation.enter(WAITING)
        waited_since_s = time.monotonic()
        async with self.compilers.slot(evaluation):
            self.queue_s += time.monotonic() - waited_since_s
            evaluation.enter("compile")
            self.compiles += 1
            earlier_artifacts = self._artifacts.get(identity, {})
            reply_ref, artifacts_ref = self._remote_compile(self._spec, to_text(order), earlier_artifacts)
            try:
                # A processor, and a process on it, may have to be waited for.
                text = await _within(self._settings.deadline_s + self._settings.place_s, reply_ref)
            except _WorkerLost:
                _cancel_task(reply_ref)
                raise
            except asyncio.CancelledError:
                _cancel_task(reply_ref)
                raise
        reply = from_text(StepReply, text)
        self.durations_s.update(reply.durations_s)
        if reply.compiled:
            self._artifacts[identity] = artifacts_ref
            while len(self._artifacts) > MAX_ARTIFACTS:
                self._artifacts.popitem(last=False)
        return reply

    def _remote_compile(
        self, spec: str, order: str, earlier_artifacts: ObjectRef | dict[str, bytes]
    ) -> tuple[Any, Any]:
        if self._compile_task is None:
            import ray

            from pkb_gym.cluster.compiling import compile_source

            self._compile_task = ray.remote(compile_source).options(
                num_returns=2, num_cpus=self._settings.compile_cpus, max_retries=self._settings.retries
            )
        reply_ref, artifacts_ref = self._compile_task.remote(spec, order, earlier_artifacts)
        return reply_ref, artifacts_ref

    async def _on_gang(
        self, evaluation: PoolEvaluation, identity: str, lane: Lane, until: Literal["check"] | None
    ) -> StepReply:
        evaluation.enter(WAITING)
        waited_since_s = time.monotonic()
        async with lane.slot(evaluation) as gang:
            self.queue_s += time.monotonic() - waited_since_s
            order = self._order(evaluation, until)
            evaluation.enter(PREPARING)
            if identity in self._artifacts:
                self._artifacts.move_to_end(identity)
            artifacts: Mapping[str, bytes] | Any = self._artifacts.get(identity, {})
            ref = gang.placed.actor.step.remote(to_text(order), artifacts, self._pool if order.reports else None)
            try:
                text = await _within(self._settings.deadline_s, ref)
            except _WorkerLost as error:
                logger.warning("a gang is replaced: %s", error)
                self._artifacts.pop(identity, None)  # it may be the artifact that was lost: the next gang compiles
                lane.discard(gang, lost=True)
                raise
            except asyncio.CancelledError:
                await self._cancel_on(gang, lane, order.attempt, ref)
                raise
            reply = from_text(StepReply, text)
            gang.faults = gang.faults + 1 if reply.is_infrastructure else 0
            if gang.faults >= MAX_FAULTS:
                lane.discard(gang, lost=True)
        self.durations_s.update(reply.durations_s)
        return reply

    async def _cancel_on(self, gang: ReadyGang, lane: Lane, attempt: str, ref: ObjectRef) -> None:
        """Ends a cancelled step; its gang stays where the step ends within the deadline."""
        gang.placed.actor.cancel.remote(attempt)
        try:
            await _within(self._settings.deadline_s, ref)
        except (_WorkerLost, asyncio.CancelledError):
            lane.discard(gang, lost=True)

    def _order(self, evaluation: PoolEvaluation, until: Literal["compile", "check"] | None) -> Order:
        evaluation.attempt = secrets.token_hex(8)
        return Order(
            request=evaluation.request,
            key=evaluation.key,
            attempt=evaluation.attempt,
            until=until,
            reports=evaluation.reports,
        )

    async def _with_retries(self, evaluation: PoolEvaluation, attempt: Callable[[], Awaitable[StepReply]]) -> StepReply:
        """The reply of the first attempt that no machine failed in, or of the last one."""
        for number in range(self._settings.retries + 1):
            if number:
                self.retries += 1
                evaluation.enter(WAITING)
                await asyncio.sleep(PAUSE_S * number)
            try:
                reply = await attempt()
            except _WorkerLost as error:
                reply = _failed(f"its worker was lost {number + 1} times, the last one so: {error}")
            except InfrastructureError as error:  # there is no room for a gang
                return _failed(str(error))
            if not reply.is_infrastructure:
                break
        return reply


def _failed(why: str) -> StepReply:
    error = ErrorReport(error=InfrastructureError.__name__, message=f"the cluster could not judge it: {why}")
    return StepReply(is_final=True, is_infrastructure=True, error=error)


async def _within(deadline_s: float, ref: ObjectRef) -> str:
    """The text that a worker returns.

    Raises:
        _WorkerLost: It takes longer, or the worker or its node ended.
    """
    from ray.exceptions import RayError

    try:
        text: str = await asyncio.wait_for(asyncio.shield(_result(ref)), deadline_s)
    except TimeoutError:
        raise _WorkerLost(f"no reply within {deadline_s:g} s") from None
    except RayError as error:
        raise _WorkerLost(in_one_line(error)) from None
    return text


async def _result(ref: ObjectRef) -> str:
    text: str = await ref
    return text


def _cancel_task(ref: ObjectRef) -> None:
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(RayError, ValueError):
        ray.cancel(ref, force=True)
