"""Plays episodes with a policy: sample a reply, call its tools, append what they answer, and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pkb_gym.engine.errors import ConfigError
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.chat import Message
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.episodes import PolicyReply, RolloutEpisode
from pkb_gym.training.rollout.rollout_environment import RolloutEnvironment, Rollouts
from pkb_gym.training.rollout.sampling import ReplySampler, Tokens
from pkb_gym.training.rollout.tool_rounds import Rollout, ToolBox, side_by_side


@dataclass(frozen=True)
class EpisodeLimits:
    """The limits of an episode.

    Attributes:
        max_turns: Maximum number of replies that may submit.
        max_completion_length: Maximum number of tokens after the prompt, feedback included.
        context: Maximum length of a sequence in tokens that the policy can take.
    """

    max_turns: int
    max_completion_length: int
    context: int

    def room(self, rollout: Rollout) -> int:
        """The number of tokens that may follow."""
        return self.room_after(rollout, [], rollout.trimmed_ids)

    def room_after(self, rollout: Rollout, answer: Sequence[int], trimmed: Sequence[int] | None) -> int:
        """The number of tokens that may follow an answer.

        Args:
            rollout: Rollout before the answer.
            answer: Tokens of the answer.
            trimmed: Tokens that the policy reads next; None where it reads all of them.
        """
        completion = len(rollout.completion_ids) + len(answer)
        context = len(rollout.prompt_ids) + completion if trimmed is None else len(trimmed)
        return min(self.max_completion_length - completion, self.context - context)


@dataclass
class Played:
    """One episode, in tokens and in submissions."""

    prompt: Sequence[Message]
    episode: RolloutEpisode
    environment: RolloutEnvironment
    rollout: Rollout
    reply: Tokens = field(default_factory=list)
    is_over: bool = False


class Player:
    """Plays episodes as the GRPO trainer does: the same dialogue, token by token.

    Args:
        sampler: Sampler of replies.
        dialogue: Dialogue with the policy.
        rollouts: Environment that begins episodes.
        schedule: Schedule of evaluations.
        host: Group of all ranks.
        limits: Limits of an episode.
    """

    def __init__(
        self,
        sampler: ReplySampler,
        dialogue: Dialogue,
        rollouts: Rollouts,
        schedule: EvaluationSchedule,
        host: HostGroup,
        limits: EpisodeLimits,
    ) -> None:
        self._sampler, self._dialogue, self._rollouts = sampler, dialogue, rollouts
        self._schedule, self._host, self._limits = schedule, host, limits
        self._clock = PhaseClock()

    def play(self, rows: Sequence[Row], seed: int) -> list[RolloutEpisode]:
        """Plays one episode on each row of the prompts; a collective, to which a rank may come without any row.

        Args:
            rows: Rows of `pkb export prompts`.
            seed: Seed of the sampling.

        Raises:
            ConfigError: a row cannot be understood, or its prompt leaves no room for a reply.
            ProblemNotFound: there is no such problem.
        """
        played = [self._begin(row) for row in rows]
        for turn in range(self._limits.max_turns):
            playing = [one for one in played if not one.is_over]
            if not self._host.any(bool(playing)):
                break
            self._play_turn(playing, seed + turn)
        return [one.episode for one in played]

    def _begin(self, row: Row) -> Played:
        environment = RolloutEnvironment(self._rollouts)
        environment.reset(**row)
        assert environment.episode is not None
        rollout = Rollout(self._dialogue.prompt_ids(row["prompt"]), [], [], [], None)
        if self._limits.room(rollout) < 1:
            raise ConfigError(
                f"{row['problem']}: a prompt of {len(rollout.prompt_ids)} tokens leaves no room for a reply: the "
                f"policy takes {self._limits.context}; export prompts of style `brief`, or take another model"
            )
        return Played(row["prompt"], environment.episode, environment, rollout)

    def _play_turn(self, played: Sequence[Played], seed: int) -> None:
        budgets = [self._dialogue.room(self._limits.room(one.rollout)) for one in played]
        contexts = [one.rollout.context_ids for one in played]
        replies = self._sampler.sample(contexts, budgets, seed) if played else []
        for one, context, reply in zip(played, contexts, replies, strict=True):
            one.episode.add_reply(PolicyReply(self._dialogue.text(reply), len(context), len(reply)))
            message = self._dialogue.read(reply, context, reference_source(one.episode.task.problem))
            one.rollout.append_assistant_message(message, reply, None)
            one.reply = reply
        with self._schedule.reward_phase(self._clock):
            calls = {at: one.rollout.tool_calls for at, one in enumerate(played)}
            answers = side_by_side({at: _tool_box(played[at]).answer(made) for at, made in calls.items() if made})
        for at, one in enumerate(played):
            one.is_over = not self._append_answers(one, answers.get(at, []))

    def _append_answers(self, one: Played, answers: Sequence[Message]) -> bool:
        """Appends the answers, if there are any and something may follow them."""
        if not answers:
            return False
        ids, rollout = self._dialogue.answer_ids(answers, one.reply), one.rollout
        trimmed = self._dialogue.trimmed_ids(one.prompt, [*rollout.messages, *answers])
        if self._limits.room_after(rollout, ids, trimmed) < 1:
            return False
        rollout.append_tool_messages(answers, ids)
        rollout.trimmed_ids = trimmed
        return True


def _tool_box(one: Played) -> ToolBox:
    tools: Mapping[str, Any] = {RolloutEnvironment.submit.__name__: one.environment.submit}
    return ToolBox(tools, one.episode.begin_message, one.episode.record_fault)
