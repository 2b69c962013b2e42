"""Plays episodes with a policy: sample a reply, call its tools, append what they answer, and again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.trl import KernelTool
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.chat import Message
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.episodes import PolicyReply, RolloutEpisode
from pkb_gym.training.rollout.rollouts import Rollouts
from pkb_gym.training.rollout.sampling import ReplySampler, Tokens
from pkb_gym.training.rollout.tool_rounds import CallCounts, Rollout, TokenRow, ToolBox, side_by_side

Reply: TypeAlias = tuple[list[int], list[float] | None]
"""Token ids of a message, and their log-probabilities where the sampler returns them."""

LateAnswer: TypeAlias = Callable[[], Coroutine[None, None, Sequence[Message]]]
"""Begins to wait for the answers to the calls of one message."""

Answers: TypeAlias = Mapping[int, Sequence[Message]]

SUBMIT = KernelTool.submit.__name__


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
        return min(self.max_completion_length - rollout.length, self.context - len(rollout.context_ids))

    def room_after(self, rollout: Rollout, answer: Sequence[int], trimmed: Sequence[int] | None) -> int:
        """The number of tokens that may follow an answer.

        Args:
            rollout: Rollout before the answer.
            answer: Tokens of the answer.
            trimmed: Tokens that the policy reads next; None where it reads all of them.
        """
        context = len(rollout.context_ids) + len(answer) if trimmed is None else len(trimmed)
        return min(self.max_completion_length - rollout.length - len(answer), self.context - context)


@dataclass
class Played:
    """One episode, in tokens and in submissions.

    Attributes:
        prompt: Messages of the prompt.
        episode: Submissions and their results.
        rollout: Tokens and messages.
        reply: Tokens of the latest reply.
        is_over: Whether no further reply is sampled.
    """

    prompt: Sequence[Message]
    episode: RolloutEpisode
    rollout: Rollout
    reply: Tokens = field(default_factory=list)
    is_over: bool = False


class Player:
    """Plays episodes, for the evaluation of policies and for GRPO: the same dialogue, token by token.

    Args:
        sampler: Sampler of replies; None for a subclass that needs none.
        dialogue: Dialogue with the policy.
        rollouts: Source of episodes.
        schedule: Schedule of evaluations.
        host: Group of all ranks.
        limits: Limits of an episode.
        clock: Clock of the phases of a step.

    Attributes:
        counts: Numbers of calls of tools so far.
    """

    def __init__(
        self,
        sampler: ReplySampler | None,
        dialogue: Dialogue,
        rollouts: Rollouts,
        schedule: EvaluationSchedule,
        host: HostGroup,
        limits: EpisodeLimits,
        clock: PhaseClock | None = None,
    ) -> None:
        self._sampler, self._dialogue, self._rollouts = sampler, dialogue, rollouts
        self._schedule, self._host, self._limits = schedule, host, limits
        self._clock = clock or PhaseClock()
        self.counts = CallCounts()

    def play(self, rows: Sequence[Row], seed: int) -> list[RolloutEpisode]:
        """Plays one episode on each row of the prompts; a collective, to which a rank may come without any row.

        Args:
            rows: Rows of `pkb export prompts`.
            seed: Seed of the sampling.

        Raises:
            ConfigError: a row cannot be understood, or its prompt leaves no room for a reply.
            ProblemNotFound: there is no such problem.
        """
        played = [self.begin(row) for row in rows]
        self.play_on(played, seed)
        return [one.episode for one in played]

    def begin(self, row: Row) -> Played:
        """An episode on a row of the prompts; raises as `play` does."""
        episode = self._rollouts.begin(row)
        rollout = Rollout([TokenRow(self._dialogue.prompt_ids(row["prompt"]))])
        if self._limits.room(rollout) < 1:
            raise ConfigError(
                f"{row['problem']}: a prompt of {len(rollout.context_ids)} tokens leaves no room for a reply: the "
                f"policy takes {self._limits.context}; export prompts of style `brief`, or take another model"
            )
        return Played(row["prompt"], episode, rollout)

    def play_on(self, played: Sequence[Played], seed: int) -> None:
        """Plays episodes to their end; a collective, likewise."""
        for turn in range(self._limits.max_turns):
            playing = [one for one in played if not one.is_over]
            if not self._any(bool(playing)):
                break
            self._play_turn(playing, seed + turn, is_last=turn == self._limits.max_turns - 1)

    def _play_turn(self, played: Sequence[Played], seed: int, *, is_last: bool) -> None:
        budgets = [self._dialogue.room(self._limits.room(one.rollout)) for one in played]
        for one, (ids, logprobs) in zip(played, self._replies(played, budgets, seed), strict=True):
            context = one.rollout.context_ids
            one.episode.add_reply(PolicyReply(self._dialogue.text(ids), len(context), len(ids)))
            one.rollout.append_assistant_message(self._read(one, ids), ids, logprobs)
            one.reply = ids
        calls = {at: made for at, one in enumerate(played) if (made := one.rollout.tool_calls)}
        boxes = {at: self._tool_box(played[at]) for at in calls}
        for at, made in calls.items():
            boxes[at].count(made)
        answers = self._answers({at: partial(boxes[at].answer, made) for at, made in calls.items()}, is_last=is_last)
        for at, one in enumerate(played):
            one.is_over = is_last or not self._append_answers(one, answers.get(at, []))

    def _any(self, flag: bool) -> bool:
        """Whether there is another round, for any rank."""
        return self._host.any(flag)

    def _replies(self, played: Sequence[Played], budgets: Sequence[int], seed: int) -> Sequence[Reply]:
        if not played:
            return []
        assert self._sampler is not None
        return [(ids, None) for ids in self._sampler.sample([one.rollout.context_ids for one in played], budgets, seed)]

    def _answers(self, answering: Mapping[int, LateAnswer], *, is_last: bool) -> Answers:  # noqa: ARG002
        """The answers to the calls of a round, by place; those of the last round are not read."""
        with self._clock.phase("evaluation"), self._schedule.reward_phase(self._clock):
            return side_by_side({at: begin() for at, begin in answering.items()})

    def _read(self, one: Played, ids: Tokens) -> Message:
        return self._dialogue.read(ids, one.rollout.context_ids, reference_source(one.episode.task.problem))

    def _append_answers(self, one: Played, answers: Sequence[Message]) -> bool:
        """Appends the answers, if there are any and something may follow them."""
        if not answers:
            return False
        ids, rollout = self._dialogue.answer_ids(answers, one.reply), one.rollout
        trimmed = self._dialogue.trimmed_ids(one.prompt, [*rollout.messages, *answers])
        if self._limits.room_after(rollout, ids, trimmed) < 1:
            return False
        rollout.append_tool_messages(answers, ids, trimmed)
        return True

    def _tool_box(self, one: Played) -> ToolBox:
        tools: Mapping[str, Any] = {SUBMIT: one.episode.submit}
        return ToolBox(tools, one.episode.begin_message, one.episode.record_fault, self.counts)
