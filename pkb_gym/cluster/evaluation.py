"""One evaluation of a pool, and how its steps follow each other."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from pkb_gym.cluster.records import PoolReply
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.service import FINISHED, QUEUED, EvaluationRequest


@dataclass(eq=False)
class PoolEvaluation:
    """One request; equal ones join it.

    Attributes:
        key: of the request as it was submitted.
        request: with device and world size decided.
        device, world_size: of its gang; ranks that share a GPU count as one.
        priority: the highest of its submissions.
        expires_s: end of the latest deadline of its submissions, by `time.monotonic`.
        clients: client -> number of submissions that were not taken back.
        reports: whether a client follows its stages.
        state: `QUEUED`, the present stage, or `FINISHED`.
        attempt: the attempt at a step that runs, by name.
        answer: present exactly when it has finished.
        kept: whether an equal request is answered by it; not where the machine failed.
        task: that takes its steps.
    """

    key: str
    request: EvaluationRequest
    device: Device
    world_size: int
    priority: int
    expires_s: float
    clients: dict[str, int] = field(default_factory=dict)
    reports: bool = False
    state: str = QUEUED
    attempt: str = ""
    answer: PoolReply | None = None
    kept: bool = True
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, client: str, priority: int, timeout_s: float) -> None:
        """Adds a submission."""
        self.clients[client] = self.clients.get(client, 0) + 1
        self.priority = max(self.priority, priority)
        self.expires_s = max(self.expires_s, time.monotonic() + timeout_s)

    def leave(self, client: str, *, entirely: bool = False) -> bool:
        """Takes back one submission of a client, or all; returns whether no submission is left."""
        left = 0 if entirely else self.clients.get(client, 0) - 1
        if left > 0:
            self.clients[client] = left
        else:
            self.clients.pop(client, None)
        return not self.clients

    def enter(self, state: str) -> None:
        """Sets the state and wakes the clients that wait."""
        self.state = state
        self._wake()

    def finish(self, answer: PoolReply, *, kept: bool) -> bool:
        """Accepts the first answer; returns whether it is this one."""
        if self.answer is not None:
            return False
        self.answer, self.kept, self.state = answer, kept, FINISHED
        self._wake()
        return True

    async def reply(self, seen: str | None, wait_s: float) -> PoolReply:
        """Waits for the answer, or for another state than `seen`; None waits for the answer alone."""
        deadline = time.monotonic() + wait_s
        while self.answer is None and (seen is None or self.state == seen):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                break
        return self.answer or PoolReply(key=self.key, state=self.state)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
