"""A session for frameworks that run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from pkb_gym.envs.loop import TurnResult
from pkb_gym.envs.session import SubmissionSession

SIDE_BY_SIDE = 256
"""Number of submissions of a process that wait at a time; the evaluator has its own order."""

Result = TypeVar("Result")


class AsyncSession:
    """Has the submissions of one episode judged one after another, while others of the event loop go on.

    Args:
        session: Session of the episode.

    Attributes:
        session: Session of the episode.
    """

    def __init__(self, session: SubmissionSession) -> None:
        self.session = session
        self._one_at_a_time = asyncio.Lock()

    async def submit(self, source: str) -> TurnResult:
        """Has a source judged, after those submitted before it; see `SubmissionSession.submit`."""
        async with self._one_at_a_time:
            return await in_thread(self.session.submit, source)


async def in_thread(work: Callable[..., Result], *args: object) -> Result:
    """Waits for a function that runs in a thread, while others of the event loop go on."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work, *args)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="pkb-submit")
