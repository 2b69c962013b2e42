"""The tool `submit` for verl's own agent loop `tool_agent`.

In the file of `actor_rollout_ref.rollout.multi_turn.tool_config_path`:

    tools:
      - class_name: pkb_gym.adapters.verl.tool.SubmitTool
        config: {type: native, settings: {evaluator: "http://node:8900", device: cuda, world_size: 4}}

verl makes and releases an instance of a tool around each call, turns exceptions into a reward of 0, and cuts answers in
the middle at `max_tool_response_length` characters, by default 256. So episodes are kept by trajectory, failures of the
evaluator are answers, and the verdict comes first; set the limit to 20000. A tool cannot end a trajectory: set
`max_assistant_turns`, or a model that calls without a source is asked until its response is full. `KernelAgentLoop` has
none of these traps.
"""

from __future__ import annotations

import logging
import uuid
import weakref
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import AgentData
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from pkb_gym.adapters.async_session import AsyncSession
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.adapters.verl.schema import score_of, submit_schema

logger = logging.getLogger(__name__)

SCORE = "pkb_score"
"""Field of a trajectory: the value of its best submission; NaN where one was not judged."""


class SubmitTool(BaseTool):
    """Judges the submissions of many trajectories; each has an episode, which ends when verl drops the trajectory.

    Args:
        config: Mapping whose entry `settings` holds fields of `EpisodeSettings`.
        tool_schema: Schema of the tool; by default that of `submit`.

    Raises:
        ConfigError: A setting is unknown, or takes no such value.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(config, tool_schema or submit_schema())
        self._settings = EpisodeSettings.of(config.get("settings") or {})
        self._tasks: dict[str, dict[str, Any]] = {}
        self._sessions: weakref.WeakKeyDictionary[AgentData, AsyncSession] = weakref.WeakKeyDictionary()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Notes the task of a call, from `extra_info.tools_kwargs` of the row."""
        instance_id = instance_id or uuid.uuid4().hex
        self._tasks[instance_id] = kwargs.get("create_kwargs") or {}
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Has a source judged. Its reward is the increase of the best value, None where it was not judged."""
        trajectory: AgentData = kwargs["agent_data"]
        source = parameters.get("source")
        if not isinstance(source, str):
            return ToolResponse(text="rejected: `submit` takes the argument `source`, a text"), 0.0, {}
        try:
            playing = self._session_of(trajectory, self._tasks.get(instance_id, {}))
            reply = await playing.submit(source)
        except Exception as error:  # verl would make a reward of 0 of it, whatever it is
            logger.warning("a submission was not judged", exc_info=True)
            trajectory.extra_fields[SCORE] = float("nan")
            return ToolResponse(text=f"not judged: {error}"), None, {}
        trajectory.extra_fields[SCORE] = score_of(playing.session.episode)
        if reply.turn is not None and reply.gain is not None:
            trajectory.turn_scores.append(reply.gain)
        verdict = "" if reply.turn is None else f"{playing.session.episode.message('brief')}\n\n"
        return ToolResponse(text=f"{verdict}{reply.text}"), reply.gain, {}

    async def release(self, instance_id: str, **_: Any) -> None:
        """Called after each call: the episode goes on."""
        self._tasks.pop(instance_id, None)

    def _session_of(self, trajectory: AgentData, task: dict[str, Any]) -> AsyncSession:
        if (playing := self._sessions.get(trajectory)) is None:
            session = self._settings.open_session(task.get("problem"))
            session.reset(task.get("problem"), task.get("seed"))
            playing = self._sessions[trajectory] = AsyncSession(session)
        return playing
