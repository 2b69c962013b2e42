"""The typed client; `GenericEnvClient` of OpenEnv does without this package."""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from pkb_openenv.models import KernelAction, KernelObservation, PKBState


class KernelEnv(EnvClient[KernelAction, KernelObservation, PKBState]):
    """A session of its own on a server, over a WebSocket.

    Example:
        >>> with KernelEnv(base_url="http://localhost:8000").sync() as env:  # doctest: +SKIP
        ...     task = env.reset(problem="AllReduce", seed=0).observation.text
        ...     result = env.step(KernelAction(source=write_kernel(task)))
    """

    def _step_payload(self, action: KernelAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[KernelObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = KernelObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> PKBState:
        return PKBState(**payload)
