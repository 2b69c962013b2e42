"""One evaluation of a pool."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pkb_gym.cluster.records import PoolReply
from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.evaluators.queue.entry import Entry
from pkb_gym.engine.evaluators.queue.listeners import wait_until
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.service import ErrorReport, EvaluationRequest


@dataclass(eq=False, kw_only=True)
class PoolEvaluation(Entry[str]):
    """One request, which equal ones join; its answer is the JSON text of a `Feedback`.

    Attributes:
        request: Request with device and world size decided.
        device: Device of its gang.
        world_size: Devices of its gang, at least 1; ranks that share a GPU count as one.
        reports: Whether a client follows its stages.
        attempt: Name of the present attempt at a step.
        task: Task that takes its steps; None before it begins.
    """

    request: EvaluationRequest
    device: Device
    world_size: int
    reports: bool = False
    attempt: str = ""
    task: asyncio.Task[None] | None = None

    async def reply(self, seen: str | None, wait_s: float) -> PoolReply:
        """Waits for the answer, or for another state than `seen`; None waits for the answer alone."""
        await wait_until(
            lambda: self.answer is not None or (seen is not None and self.state != seen), [self.changed], wait_s
        )
        if isinstance(self.answer, PkbError):
            return PoolReply(key=self.key, state=self.state, error=ErrorReport.of(self.answer))
        return PoolReply(key=self.key, state=self.state, feedback=self.answer)
