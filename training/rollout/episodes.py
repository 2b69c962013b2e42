"""One rollout of a policy on one row of the prompts: its submissions and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.config_request import checked_config
from pkb_gym.envs.episode import Episode, Turn
from pkb_gym.envs.loop import EpisodeLoop
from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES, Style
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator, Verdict

FeedbackText: TypeAlias = Literal["whole", "verdict"]
"""whole: the feedback; verdict: of a submission that failed, no more than that."""

FAILED = "failed"
"""The feedback on a submission that failed, under `verdict`."""


@dataclass(frozen=True)
class RolloutTask:
    """The task of a row of the prompts.

    Attributes:
        problem: Problem to solve.
        config: Configuration of evaluations; one for all rollouts and turns, for equal sources to be judged once.
        style: Length of feedback texts.
    """

    problem: Problem
    config: EvalConfig
    style: Style

    @classmethod
    def of_row(cls, row: Mapping[str, object], base: EvalConfig) -> RolloutTask:
        """Reads a row of `pkb export prompts`.

        Args:
            row: Columns of the row; `problem` is required, the others have the defaults of `EvalConfig`.
            base: Settings that rows leave open: last stage, deadlines, time for timing.

        Raises:
            ConfigError: The row has no problem, or a column holds what `EvalConfig` does not take.
            ProblemNotFound: There is no such problem.
        """
        if not isinstance(row.get("problem"), str):
            raise ConfigError(f"a row needs a column 'problem' with a name; it has {', '.join(sorted(row))}")
        columns = ("device", "world_size", "dtype", "language", "seed")
        requested = {name: row[name] for name in columns if row.get(name) is not None}
        size = row.get("size")
        try:
            if isinstance(size, str):
                requested["size"] = json.loads(size) if size.lstrip().startswith("{") else size
            config = checked_config({**base.model_dump(), **requested, "turn": 0})
        except json.JSONDecodeError:
            raise ConfigError(f"row of problem {row['problem']}: size is no JSON object of axes: {size}") from None
        except ConfigError as error:
            raise ConfigError(f"row of problem {row['problem']}: {error}") from None
        style = row.get("style") or DEFAULT_STYLE
        if style not in STYLES:
            raise ConfigError(
                f"row of problem {row['problem']}: style must be one of {', '.join(STYLES)}, got {style!r}"
            )
        return cls(find_problem(str(row["problem"])), config, style)


@dataclass(frozen=True)
class PolicyReply:
    """One message of the policy, whether or not a submission could be read in it.

    Attributes:
        text: Decoded text, without special tokens.
        prompt_tokens: Number of tokens that the policy read.
        tokens: Number of tokens that the policy wrote.
    """

    text: str
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True)
class Submission:
    """One evaluated source of a rollout.

    Attributes:
        reply: Number of the reply that it was read from, from 0; None where no replies are recorded.
        message: Number of the policy's message that submitted it, from 0.
        turn: Source and score.
        verdict: Result of its evaluation.
        answer: Tool message to the policy.
    """

    reply: int | None
    message: int
    turn: Turn
    verdict: Verdict
    answer: str


class RolloutEpisode(Episode):
    """The episode of one rollout. A message of the policy may submit one source, several, or, in error, none.

    Args:
        task: Task of the rollout.
        evaluator: Evaluator of the submissions.
        reward, max_turns, empty_value: Arguments of `Episode`; a message without submissions has the empty value too.
        feedback: Part of the feedback that the policy reads.
        shorten: Function that makes an answer to the policy short enough.

    Attributes:
        task: Task of the rollout.
        submissions: Evaluated submissions, in order.
        replies: Recorded messages of the policy, in order.
    """

    def __init__(
        self,
        task: RolloutTask,
        evaluator: AsyncEvaluator,
        reward: Reward,
        max_turns: int,
        empty_value: float,
        feedback: FeedbackText = "whole",
        shorten: Callable[[str], str] = str,
    ) -> None:
        super().__init__(reward, max_turns, empty_value)
        self.task = task
        self.submissions: list[Submission] = []
        self.replies: list[PolicyReply] = []
        self._messages = 0
        self._loop = EpisodeLoop(self, task.style)
        self._evaluator = evaluator
        self._feedback_text, self._shorten = feedback, shorten

    def add_reply(self, reply: PolicyReply) -> None:
        """Called with each message of the policy, before anything in it is submitted."""
        self.replies.append(reply)

    @property
    def unread_replies(self) -> list[int]:
        """Numbers of the replies in which no submission could be read."""
        read = {submission.reply for submission in self.submissions}
        return [number for number in range(len(self.replies)) if number not in read]

    def begin_message(self) -> None:
        """Called before the tools of a message are."""
        self._messages += 1

    def prefetch(self, source: str) -> None:
        """Begins to evaluate a source that is about to be submitted, as far as that may begin early."""
        if self.refusal is None:
            self._evaluator.prefetch(self.task.problem, source, self.task.config)

    def record_fault(self, source: str) -> str:
        """Takes the episode out, as a tool raised an exception of its own: its message, and no value for any turn.

        Args:
            source: Source that the tool was called with, as far as it is known.
        """
        return self._add(source, Verdict(None, "crashed", 0.0, is_duplicate=False))

    async def submit(self, source: str) -> str:
        """Evaluates a source and returns the tool message that answers it."""
        if (refusal := self.refusal) is not None:
            return refusal
        return self._add(source, await self._evaluator.evaluate(self.task.problem, source, self.task.config))

    def _add(self, source: str, verdict: Verdict) -> str:
        result = self._loop.judged(source, verdict.feedback)
        assert result.turn is not None
        has_failed = verdict.feedback is not None and verdict.feedback.failure is not None
        answer = FAILED if has_failed and self._feedback_text == "verdict" else self._shorten(result.text)
        reply = len(self.replies) - 1 if self.replies else None
        self.submissions.append(Submission(reply, max(0, self._messages - 1), result.turn, verdict, answer))
        return answer

    def values(self) -> list[float | None]:
        """Value of each message: that of the best of its submissions, or the empty value without any.

        A message whose call could not be read, or that calls no tool, counts as one: it ends the rollout.
        An episode without any message has one value, the empty one. One in which the evaluator failed has no values,
        as those of the other messages are not known.
        """
        if self.episode_value is None:
            return [None] * self._message_count
        judged: list[list[float]] = [[] for _ in range(self._message_count)]
        for submission in self.submissions:
            if submission.turn.value is not None:
                judged[submission.message].append(submission.turn.value)
        return [max(values, default=self.empty_value) for values in judged]

    def submitted(self) -> list[bool]:
        """Whether a submission of each message was evaluated, in the order of `values`."""
        made = {submission.message for submission in self.submissions}
        return [message in made for message in range(self._message_count)]

    @property
    def _message_count(self) -> int:
        """Number of messages; tools are not called for the last reply where no call could be read in it."""
        return max(1, self._messages, len(self.replies))
