"""Plays the rollouts of a batch with the policy that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.learner.policy_backend import PolicyBackend
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.player import EpisodeLimits, Played, Player, Reply
from pkb_gym.training.rollout.rollouts import Rollouts


class TrainingPlayer(Player):
    """Plays as `Player` does, and begins evaluations as soon as a sequence is complete.

    Args:
        backend: Backend that generates.
        dialogue: Dialogue with the policy.
        rollouts: Source of episodes.
        schedule: Schedule of evaluations.
        host: Group of all ranks.
        max_completion_length: Maximum number of tokens after the prompt, feedback included.
        clock: Clock of the phases of a step.
    """

    def __init__(
        self,
        backend: PolicyBackend,
        dialogue: Dialogue,
        rollouts: Rollouts,
        schedule: EvaluationSchedule,
        host: HostGroup,
        max_completion_length: int,
        clock: PhaseClock | None = None,
    ) -> None:
        limits = EpisodeLimits(rollouts.max_turns, max_completion_length, backend.context)
        super().__init__(None, dialogue, rollouts, schedule, host, limits, clock)
        self._backend = backend
        self._in_step = backend.needs_all_ranks or schedule.takes_turns

    def _any(self, flag: bool) -> bool:
        """Where a round needs all ranks, whether any needs it; else each rank goes its own way."""
        if not self._in_step:
            return flag
        with self._clock.phase("ranks"):
            return self._host.any(flag)

    def _replies(self, played: Sequence[Played], budgets: Sequence[int], seed: int) -> list[Reply]:  # noqa: ARG002
        contexts = [one.rollout.context_ids for one in played]
        with self._clock.phase("generation"):
            replies = self._backend.generate(contexts, budgets, partial(self._prefetch, played, budgets))
        return [
            (ids[:budget], None if logprobs is None else logprobs[:budget])
            for (ids, logprobs), budget in zip(replies, budgets, strict=True)
        ]

    def _prefetch(self, played: Sequence[Played], budgets: Sequence[int], place: int, ids: list[int]) -> None:
        """Begins evaluations of a reply's submissions, as far as they may begin; may be called again."""
        one = played[place]
        for call in self._read(one, ids[: budgets[place]]).get("tool_calls") or []:
            arguments = (call.get("function") or {}).get("arguments")
            source = arguments.get("source") if isinstance(arguments, dict) else None
            if isinstance(source, str):
                one.episode.prefetch(source)
