"""The pool of a cluster: one detached actor that takes the requests of all clients and answers each once.

    submit ─> EvaluationQueue, bounded ─> steps (steps.py) ─> answer, kept for equal requests

The actor runs on the head, and Ray restarts it when it dies. It has then forgotten everything, and clients submit
again: a request is known by its key. Methods return JSON text of records; the actor runs one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import pkb_gym
from pkb_gym.cluster import inspection, placement
from pkb_gym.cluster.evaluation import PoolEvaluation
from pkb_gym.cluster.evaluation_step import refusal
from pkb_gym.cluster.lane import GangCounts, Lane
from pkb_gym.cluster.metrics import PoolMetrics
from pkb_gym.cluster.records import (
    CompileSpec,
    GangSpec,
    Hello,
    PoolReply,
    PoolRequest,
    PoolStatus,
    Purpose,
    from_text,
    to_text,
)
from pkb_gym.cluster.requests import resolved_request
from pkb_gym.cluster.settings import PoolSettings, differing
from pkb_gym.cluster.steps import Steps
from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError, PkbError
from pkb_gym.engine.evaluators.queue.evaluation_queue import EvaluationQueue
from pkb_gym.engine.evaluators.queue.quotas import Quotas
from pkb_gym.engine.records.service import ErrorReport
from pkb_gym.problems.own_problems import register_folder

logger = logging.getLogger(__name__)

MAX_ANSWERS = 1024
TICK_S = 1.0
NODES_S = 5.0
"""Pause between two counts of the cluster's nodes, in seconds."""


class Pool:
    """The actor.

    Args:
        settings: JSON text of the `PoolSettings` that its first client named.
    """

    def __init__(self, settings: str) -> None:
        self._settings = from_text(PoolSettings, settings)
        for folder in self._settings.problems:
            register_folder(folder)
        self._key = secrets.token_hex(16)
        self._lanes: dict[tuple[str, int, Purpose], Lane] = {}
        self._counts = GangCounts()
        self._queue: EvaluationQueue[PoolEvaluation, str] = EvaluationQueue(
            self._begin, Quotas(max_unfinished=self._settings.most_waiting), max_answers=MAX_ANSWERS
        )
        self._clients: dict[str, float] = {}
        self._nodes: list[placement.Resources] = []
        self._faults = 0
        self._began_s = time.monotonic()
        self._metrics = PoolMetrics(self._settings.pool)
        self._steps: Steps | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def hello(self, hello: str) -> str:
        """Makes a client known; JSON text of a `PoolReply`."""
        return await self._answered_errors(lambda: self._hello(from_text(Hello, hello)))

    async def submit(self, submission: str, wait_s: float) -> str:
        """Has a source judged, or joins the evaluation of an equal request.

        Args:
            submission: JSON text of a `PoolRequest`.
            wait_s: Longest wait for the answer in seconds.

        Returns:
            JSON text of a `PoolReply`.
        """
        return await self._answered_errors(lambda: self._submit(submission, wait_s))

    async def wait(self, key: str, client: str, seen: str | None, wait_s: float) -> str:
        """Waits for an answer.

        Args:
            key: Key of the evaluation.
            client: Name of the client that waits.
            seen: Last state that the client saw: another one ends the wait; None waits for the answer alone.
            wait_s: Longest wait in seconds.

        Returns:
            JSON text of a `PoolReply`.
        """
        return await self._answered_errors(lambda: self._wait(key, client, seen, wait_s))

    async def give_up(self, key: str, client: str) -> None:
        """Takes back one submission. If nobody else waits for the evaluation, it ends before its next stage."""
        with contextlib.suppress(EvaluationNotFound):
            self._give_up(self._queue.find(key), client, "it was given up")

    async def note(self, key: str, attempt: str, state: str) -> None:
        """Receives from a gang the stage that begins."""
        with contextlib.suppress(EvaluationNotFound):
            evaluation = self._queue.find(key)
            if evaluation.attempt == attempt:
                self._queue.enter(evaluation, state)

    async def status(self) -> str:
        """JSON text of a `PoolStatus`."""
        await self._start()
        return to_text(self._status())

    async def machine(self, wait_s: float) -> str:
        """JSON text of the `Machine` that gangs judge on: the node with the most GPUs, and then processors.

        GPUs that an autoscaler may add are counted, by a name that says no more.

        Args:
            wait_s: Longest wait for the node in seconds.
        """
        await self._start()
        described = await asyncio.to_thread(inspection.describe_largest_node, wait_s)
        return to_text(inspection.as_gangs_see_it(described, self._gpus(), self._settings.architecture))

    async def leave(self, client: str) -> bool:
        """Takes back all that a client submitted; whether it was the last client, and the pool has ended its gangs."""
        self._clients.pop(client, None)
        for evaluation in self._queue.begun():
            self._give_up(evaluation, client, "its client left", entirely=True)
        self._forget_silent_clients()
        if self._clients:
            return False
        await self._close()
        return True

    async def _answered_errors(self, answer: Callable[[], Awaitable[PoolReply]]) -> str:
        """JSON text of an answer; refusals are part of it, so that no exception is pickled."""
        try:
            return to_text(await answer())
        except PkbError as error:
            return to_text(PoolReply(error=ErrorReport.of(error)))

    async def _start(self) -> Steps:
        """Makes the parts that need the event loop, once."""
        import ray

        async with self._starting:
            if self._closed:
                raise InfrastructureError("the pool was closed")
            if self._steps is None:
                removed = await asyncio.to_thread(placement.remove_groups, self._settings.pool)
                if removed:
                    logger.warning("%d placement groups of an earlier process of this pool were removed", removed)
                await self._count_nodes()
                spec = CompileSpec(
                    evaluator=self._settings.evaluator,
                    key=self._key,
                    problems=self._settings.problems,
                    architecture=self._settings.architecture,
                )
                me = ray.get_runtime_context().current_actor
                self._steps = Steps(self._settings, spec, self._find_lane, self._runs_here, me)
                self._resize_compilers()
                self._ticking = asyncio.create_task(self._tick())
            return self._steps

    async def _hello(self, hello: Hello) -> PoolReply:
        if hello.version != pkb_gym.__version__:
            raise ConfigError(
                f"the pool {self._settings.pool!r} runs pkb-gym {pkb_gym.__version__}, this client {hello.version}; "
                "install one version on all nodes, or name another pool (ray?pool=NAME)"
            )
        requested = PoolSettings.model_validate(hello.settings)
        if wrong := differing(requested, self._settings):
            raise ConfigError(
                f"the pool {self._settings.pool!r} runs already, with other settings: {', '.join(wrong)}; "
                "leave them out, or name another pool (ray?pool=NAME)"
            )
        await self._start()
        self._see(hello.client)
        return PoolReply()

    async def _submit(self, text: str, wait_s: float) -> PoolReply:
        await self._start()
        submission = from_text(PoolRequest, text)
        self._see(submission.client)
        key, urgency = submission.request.key, (submission.priority, submission.timeout_s)
        evaluation = self._queue.join(key, submission.client, *urgency)
        if evaluation is None:
            request, device, world_size = resolved_request(submission.request, self._gpus())
            evaluation = PoolEvaluation(
                key=key, id=key, request=request, device=device, world_size=world_size, reports=submission.reports
            )
            self._queue.submit(evaluation, submission.client, *urgency)
        return await evaluation.reply(None, wait_s)

    async def _wait(self, key: str, client: str, seen: str | None, wait_s: float) -> PoolReply:
        self._see(client)
        reply = await self._queue.find(key).reply(seen, wait_s)
        self._see(client)
        return reply

    def _begin(self, evaluation: PoolEvaluation) -> None:
        evaluation.task = asyncio.create_task(self._judge(evaluation))

    async def _judge(self, evaluation: PoolEvaluation) -> None:
        assert self._steps is not None, "requests are taken once the pool has started"
        try:
            reply = await self._steps.take_all(evaluation)
        except asyncio.CancelledError:
            return
        except Exception as error:  # whatever it is, clients get an answer
            logger.exception("an evaluation failed")
            reply = refusal(InfrastructureError(f"{type(error).__name__}: {error}"))
        self._faults += reply.is_infrastructure
        answer = reply.feedback if reply.error is None else reply.error.exception()
        assert answer is not None
        self._queue.finish(evaluation, answer, keep=not reply.is_infrastructure)

    def _give_up(self, evaluation: PoolEvaluation, client: str, why: str, *, entirely: bool = False) -> None:
        if self._queue.give_up(evaluation, client, entirely=entirely):
            self._cancel(evaluation, why)

    def _cancel(self, evaluation: PoolEvaluation, why: str) -> None:
        self._queue.cancel(evaluation, EvaluationNotFound(f"the evaluation has ended: {why}"))
        if evaluation.task is not None:
            evaluation.task.cancel()

    def _find_lane(self, evaluation: PoolEvaluation, purpose: Purpose) -> Lane | None:
        kind = (evaluation.device, evaluation.world_size, purpose)
        if kind in self._lanes:
            return self._lanes[kind]
        settings = self._settings

        def most() -> int:
            nodes, device, world_size = self._nodes, evaluation.device, evaluation.world_size
            return placement.lane_limits(nodes, device, world_size, settings).of(purpose)

        if most() == 0:
            return None
        spec = GangSpec(
            device=evaluation.device,
            world_size=evaluation.world_size,
            purpose=purpose,
            slots=settings.checks_per_gang if purpose == "shared" else 1,
            evaluator=settings.evaluator,
            key=self._key,
            problems=settings.problems,
        )
        self._lanes[kind] = Lane(
            spec,
            settings,
            least=settings.shared_least if purpose == "shared" else settings.exclusive_least,
            most=most,
            place=lambda spec: placement.place_gang(spec, settings),
            make_room=self._make_room,
            counts=self._counts,
        )
        return self._lanes[kind]

    def _runs_here(self, evaluation: PoolEvaluation) -> bool:
        """Whether gangs can have its device: where no node has a GPU, CUDA sources are compiled, and that is all."""
        return evaluation.device != "cuda" or self._gpus() > 0

    def _gpus(self) -> int:
        """GPUs of the largest node that there is, or that an autoscaler may add."""
        return max(placement.gpus_of(self._nodes), self._settings.gpus_per_node or 0)

    async def _make_room(self, wanting: Lane) -> None:
        for lane in list(self._lanes.values()):
            if lane is not wanting:
                await lane.give_room()

    async def _tick(self) -> None:
        """Everything that happens by the clock."""
        counted_s = time.monotonic()
        while not self._closed:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            try:
                if now - counted_s > NODES_S:
                    await self._count_nodes()
                    counted_s = now
                for evaluation in [each for each in self._queue.begun() if each.expires_s < now]:
                    self._cancel(evaluation, "its time has passed")
                for lane in list(self._lanes.values()):
                    await lane.tick()
                self._metrics.set(self._status())
            except Exception:
                logger.exception("the pool goes on")
            if self._queue.idle_s() > self._settings.idle_s:
                await self._close()
                _end_this_actor()
                return

    async def _count_nodes(self) -> None:
        self._nodes = await asyncio.to_thread(placement.node_resources)
        self._resize_compilers()

    def _resize_compilers(self) -> None:
        cpus = int(sum(node.get("CPU", 0) for node in self._nodes))
        if self._steps is not None:
            self._steps.compilers.resize(self._settings.compilers_most or max(1, cpus))

    def _see(self, client: str) -> None:
        self._queue.touch()
        self._clients[client] = time.monotonic()
        self._forget_silent_clients()

    def _forget_silent_clients(self) -> None:
        """A client that was killed never leaves."""
        now = time.monotonic()
        for client, seen_s in list(self._clients.items()):
            if now - seen_s > self._settings.idle_s:
                del self._clients[client]

    def _status(self) -> PoolStatus:
        steps, counts = self._steps, self._queue.counts
        assert steps is not None
        return PoolStatus(
            pool=self._settings.pool,
            unfinished=len(self._queue.begun()),
            compiling=steps.compilers.busy,
            waiting_to_compile=len(steps.compilers.waiting),
            lanes=tuple(lane.status() for lane in self._lanes.values()),
            **asdict(counts),
            infrastructure_faults=self._faults,
            retries=steps.retries,
            gangs_started=self._counts.started,
            gangs_lost=self._counts.lost,
            compiles=steps.compiles,
            artifacts=steps.artifacts,
            exclusive_steps=steps.exclusive_steps,
            durations_s=dict(steps.durations_s),
            queue_s=steps.queue_s,
            uptime_s=time.monotonic() - self._began_s,
        )

    async def _close(self) -> None:
        self._closed = True
        if self._ticking is not None and self._ticking is not asyncio.current_task():
            self._ticking.cancel()
        for evaluation in self._queue.begun():
            self._cancel(evaluation, "the pool was closed")
        with contextlib.suppress(Exception):  # Ray removes the rest together with this actor
            await asyncio.gather(*(lane.close() for lane in self._lanes.values()))


def _end_this_actor() -> None:
    import ray

    me: Any = ray.get_runtime_context().current_actor
    ray.kill(me, no_restart=True)
