"""Plays episodes with a policy: sample a reply, call its tools, append what they answer, and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.chat import Message, render, submit_tools, with_parser
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.episodes import PolicyReply, RolloutEpisode
from pkb_gym.training.rollout.rollout_environment import RolloutEnvironment, Rollouts, submitted_source
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
        of_completion = self.max_completion_length - len(rollout.completion_ids)
        return min(of_completion, self.context - len(rollout.context_ids))


@dataclass
class Played:
    """One episode, in tokens and in submissions."""

    episode: RolloutEpisode
    environment: RolloutEnvironment
    rollout: Rollout
    is_over: bool = False


class Player:
    """Plays episodes as the GRPO trainer does: the same template, the same parsing, token by token.

    Args:
        sampler: Sampler of replies.
        tokenizer: Tokenizer of the policy.
        rollouts: Environment that begins episodes.
        schedule: Schedule of evaluations.
        host: Group of all ranks.
        limits: Limits of an episode.
        multi_turn: Whether the policy submits with a tool, several times; else once, by a block of code.
    """

    def __init__(
        self,
        sampler: ReplySampler,
        tokenizer: PreTrainedTokenizerBase,
        rollouts: Rollouts,
        schedule: EvaluationSchedule,
        host: HostGroup,
        limits: EpisodeLimits,
        *,
        multi_turn: bool = True,
    ) -> None:
        self._sampler, self._rollouts = sampler, rollouts
        self._tokenizer = with_parser(tokenizer) if multi_turn else tokenizer
        self._schedule, self._host, self._limits = schedule, host, limits
        self._multi_turn = multi_turn
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
        for turn in range(self._limits.max_turns if self._multi_turn else 1):
            playing = [one for one in played if not one.is_over]
            if not self._host.any(bool(playing)):
                break
            self._play_turn(playing, seed + turn)
        return [one.episode for one in played]

    def _begin(self, row: Row) -> Played:
        environment = RolloutEnvironment(self._rollouts)
        environment.reset(**row)
        assert environment.episode is not None
        text = render(self._tokenizer, row["prompt"], reply_next=True, with_tools=self._multi_turn)
        rollout = Rollout(self._tokenizer(text, add_special_tokens=False)["input_ids"], [], [], [], None)
        if self._limits.room(rollout) < 1:
            raise ConfigError(
                f"{row['problem']}: a prompt of {len(rollout.prompt_ids)} tokens leaves no room for a reply: the "
                f"policy takes {self._limits.context}; export prompts of style `brief`, or take another model"
            )
        return Played(environment.episode, environment, rollout)

    def _play_turn(self, played: Sequence[Played], seed: int) -> None:
        budgets = [self._limits.room(one.rollout) for one in played]
        contexts = [one.rollout.context_ids for one in played]
        replies = self._sampler.sample(contexts, budgets, seed) if played else []
        for one, reply in zip(played, replies, strict=True):
            text = str(self._tokenizer.decode(reply, skip_special_tokens=True))
            one.episode.add_reply(PolicyReply(text, len(one.rollout.context_ids), len(reply)))
            one.rollout.append_assistant_message(self._message(one.rollout, reply), reply, None)
        with self._schedule.reward_phase(self._clock):
            if self._multi_turn:
                self._call_tools(played)
            else:
                self._submit_blocks(played)

    def _message(self, rollout: Rollout, reply: Tokens) -> Message:
        if not self._multi_turn:
            return {"role": "assistant", "content": self._tokenizer.decode(reply, skip_special_tokens=True)}
        tools: list[Any] = list(submit_tools())
        return parse_response(self._tokenizer, reply, prefix=rollout.context_ids, tools=tools)

    def _submit_blocks(self, played: Sequence[Played]) -> None:
        sources = {
            at: submitted_source(one.rollout.messages, one.episode.task.problem) for at, one in enumerate(played)
        }
        side_by_side({at: played[at].episode.submit(source) for at, source in sources.items() if source is not None})

    def _call_tools(self, played: Sequence[Played]) -> None:
        calls = {at: one.rollout.tool_calls for at, one in enumerate(played)}
        answers = side_by_side({at: _tool_box(played[at]).answer(made) for at, made in calls.items() if made})
        for at, one in enumerate(played):
            one.is_over = not self._append_answers(one.rollout, answers.get(at, []))

    def _append_answers(self, rollout: Rollout, answers: Sequence[Message]) -> bool:
        """Appends the answers, if there are any and something may follow them."""
        if not answers:
            return False
        ids = answer_ids(self._tokenizer, answers)
        if self._limits.room(rollout) <= len(ids):
            return False
        rollout.append_tool_messages(answers, ids)
        return True


def answer_ids(tokenizer: PreTrainedTokenizerBase, answers: Sequence[Message]) -> Tokens:
    """Tokens between the end of a message that calls tools and the policy's next one.

    They are what the template adds to a made-up conversation, so that what the policy wrote is never tokenized again.

    Args:
        tokenizer: Tokenizer of the policy.
        answers: Messages of role "tool".
    """
    call = {"type": "function", "function": {"name": answers[0]["name"], "arguments": {}}}
    talk: list[Message] = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def tokens(messages: list[Message], *, reply_next: bool) -> Tokens:
        text = render(tokenizer, messages, reply_next=reply_next, with_tools=False)
        found: Tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    before = tokens(talk, reply_next=False)
    # Templates may put a line break after the token that ends a message: it belongs to what follows.
    ends = [at for at, token in enumerate(before) if token == tokenizer.eos_token_id]
    begin = ends[-1] + 1 if ends else len(before)
    return tokens([*talk, *answers], reply_next=True)[begin:]


def _tool_box(one: Played) -> ToolBox:
    tools: Mapping[str, Any] = {RolloutEnvironment.submit.__name__: one.environment.submit}
    return ToolBox(tools, one.episode.begin_message, one.episode.record_fault)
