"""The server of the tool `submit`, shared by all rollouts of an environment worker."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable
from typing import Any

import verifiers.v1 as vf

from pkb_gym.adapters.async_session import in_thread
from pkb_gym.envs.loop import TurnResult
from pkb_verifiers.config import SubmitConfig
from pkb_verifiers.state import EvaluatedSource, KernelState, judged


class KernelToolset(vf.Toolset[SubmitConfig, KernelState]):
    """Has sources judged by `pkb serve`. It keeps nothing of a rollout, so that an abandoned one leaves nothing."""

    TOOL_PREFIX = None

    def __init__(self, config: SubmitConfig) -> None:
        super().__init__(config)
        self._locks: weakref.WeakValueDictionary[tuple[str | None, str | None], asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()

    @vf.tool
    async def submit(self, source: str) -> str:
        """Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline.

        Args:
            source: The complete source file of the kernel, in one of the languages that the task accepts.
        """
        state = self.state
        reply, is_over = await in_thread(self._judge, state.model_copy(deep=True), source)
        if reply.turn is not None:
            feedback = reply.turn.feedback
            record = None if feedback is None else feedback.model_dump(mode="json")
            state.attempts.append(EvaluatedSource(source=source, feedback=record))
        state.is_over = is_over
        return reply.text

    def _judge(self, state: KernelState, source: str) -> tuple[TurnResult, bool]:
        session = self.config.task.episode(state.problem).open_session(state.problem)
        session.reset(state.problem, state.seed)
        session.restore(judged(state.attempts))
        reply = session.submit(source)
        return reply, session.is_over

    def _with_state(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """One call of a rollout after another: of calls side by side, the framework would keep one state alone."""
        call = super()._with_state(fn)

        @functools.wraps(call)
        async def one_after_another(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # of any tool
            url, _, route = self._state_channel()
            async with self._locks.setdefault((url, route), asyncio.Lock()):
                return await call(*args, **kwargs)

        return one_after_another


if __name__ == "__main__":
    KernelToolset.run()
