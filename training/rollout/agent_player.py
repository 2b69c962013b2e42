"""Episodes of an agent without a model, on the prompts that policies are judged on: a control."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pkb_gym.agents.protocol import AgentProvider, AgentTask, NotCovered
from pkb_gym.agents.registry import open_agent
from pkb_gym.agents.workspace.provider import WorkspaceProvider
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.machine import Machine
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.episodes import PolicyReply, RolloutEpisode
from pkb_gym.training.rollout.rollouts import Rollouts
from pkb_gym.training.rollout.tool_rounds import side_by_side

CONTROLS = ("evolve", "expert", "nearest", "reference", "replay")
"""Agents whose first submission needs no conversation."""


def open_control(name: str) -> AgentProvider:
    """The provider of a control.

    Raises:
        ConfigError: There is no such agent, or it needs a conversation.
    """
    if (kind := name.partition(":")[0]) not in CONTROLS:
        raise ConfigError(f"--agent takes one of {', '.join(CONTROLS)}, got {kind!r}; `pkb run` plays every agent")
    provider = open_agent(name)
    assert not isinstance(provider, WorkspaceProvider)
    return provider


class AgentPlayer:
    """Plays episodes of one turn.

    Args:
        provider: Provider of the agents.
        rollouts: Source of episodes.
        schedule: Schedule of evaluations.
        machine: Machine that judges.
    """

    def __init__(
        self, provider: AgentProvider, rollouts: Rollouts, schedule: EvaluationSchedule, machine: Machine
    ) -> None:
        self._provider, self._rollouts, self._schedule, self._machine = provider, rollouts, schedule, machine

    def play(self, rows: Sequence[Row], seed: int) -> list[RolloutEpisode]:
        """Plays one episode on each row; where the agent has nothing to offer, the episode has no submission.

        Args:
            rows: Rows of `pkb export prompts`, each with the number of its episode among those on it, `sample`.
            seed: Seed of the agents.

        Raises:
            ConfigError: A row cannot be understood, or the agent cannot reply.
            ProblemNotFound: There is no such problem.
        """
        episodes = [self._rollouts.begin(row) for row in rows]
        answers = {}
        for place, (episode, row) in enumerate(zip(episodes, rows, strict=True)):
            episode.add_reply(PolicyReply("", prompt_tokens=0, tokens=0))
            episode.begin_message()
            if (source := self._source(episode, row["sample"], seed)) is not None:
                answers[place] = partial(episode.submit, source)
        with self._schedule.reward_phase(PhaseClock()):
            side_by_side({place: submit() for place, submit in answers.items()})
        return episodes

    def _source(self, episode: RolloutEpisode, sample: int, seed: int) -> str | None:
        task = episode.task
        config = self._machine.resolve(task.config, task.problem)
        try:
            reply = self._provider.begin(AgentTask(task.problem, config, sample, seed)).act([])
        except NotCovered:
            return None
        return None if reply is None else reply.submission
