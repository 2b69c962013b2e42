"""The agent loop: verl's own for tools, with one session for each trajectory.

In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: pkb_kernels
      _target_: pkb_gym.adapters.verl.agent_loop.KernelAgentLoop
      settings: {evaluator: "http://node:8900", device: cuda, world_size: 4}
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import ToolResponse

from pkb_gym.adapters.async_session import AsyncSession
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.adapters.verl.schema import SUBMIT, score_of, submit_schema

UNCUT = 1 << 30
"""Characters of an answer, in place of verl's limit for tools."""


class KernelAgentLoop(ToolAgentLoop):
    """One trajectory: verl makes an instance for each.

    Tokens and masks are those of verl's loop. `extra_fields["turn_scores"]` holds the gain of each submission, whose
    sum is `reward_score`, the value of the best one. A trajectory with a submission that the evaluator could not judge
    has the score NaN and a response mask of zeros: take the advantage estimator `pkb_grpo` (reward.py).

    Args:
        *args: Arguments of `ToolAgentLoop`.
        settings: Fields of `EpisodeSettings`.
        tools: Tools of verl's configuration, which are not used: the one tool here is `submit`.
        **kwargs: Keyword arguments of `ToolAgentLoop`.

    Raises:
        ConfigError: A setting is unknown, or takes no such value.
    """

    def __init__(
        self,
        *args: Any,
        settings: DictConfig | dict[str, object] | None = None,
        tools: ToolListWrap | None = None,  # noqa: ARG002  # given to every loop
        **kwargs: Any,
    ) -> None:
        tool = FunctionTool(SUBMIT, self._submit, submit_schema(), is_async=True)
        super().__init__(*args, tools=ToolListWrap([tool]), **kwargs)
        plain = OmegaConf.to_container(settings, resolve=True) if isinstance(settings, DictConfig) else settings
        self._settings = EpisodeSettings.of(plain or {})
        self._session: AsyncSession | None = None
        self._gains: list[float] = []
        self.max_tool_response_length = UNCUT
        # A call with wrong arguments is no submission, and verl has no bound of its own by default.
        own: int | None = self.rollout_config.multi_turn.max_assistant_turns
        bound = self._settings.max_turns + 1  # verl leaves the calls of the last turn unanswered
        self.max_assistant_turns = min(own or bound, bound)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Plays the trajectory of one row, see `dataset.prompt_rows`."""
        row = kwargs["extra_info"]
        session = self._settings.open_session(row["problem"])
        session.reset(row["problem"], int(row["seed"]))
        self._session, self._gains = AsyncSession(session), []
        try:
            output: AgentLoopOutput = await super().run(sampling_params, priority, **kwargs)
        finally:
            session.close()
        episode = session.episode
        output.reward_score = score_of(episode)
        judged = episode.episode_value is not None
        if not judged:
            output.response_mask = [0] * len(output.response_mask)
        speedup = 0.0 if episode.best is None else episode.best.speedup
        output.extra_fields["turn_scores"] = self._gains
        output.extra_fields["reward_extra_info"] = {"speedup": speedup, "judged": float(judged)}
        return output

    async def _submit(self, source: str) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        assert self._session is not None
        reply = await self._session.submit(source)
        if reply.turn is not None and reply.gain is not None:
            self._gains.append(reply.gain)
        return ToolResponse(text=reply.text), reply.gain, {}

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        """Ends the trajectory with the last submission that is judged: nothing that follows it would earn anything."""
        state: AgentState = await super()._handle_processing_tools_state(agent_data)
        assert self._session is not None
        return AgentState.TERMINATED if self._session.session.is_over else state
