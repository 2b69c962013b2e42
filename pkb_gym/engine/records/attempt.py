"""One attempt at a problem, as every file of results holds it: what was asked, submitted, found and paid."""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import AliasChoices, Field, ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record, Text
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.service import EvaluationRequest


class ChatMessage(Record):
    """One message of a conversation."""

    role: str
    content: Text


class TokenCounts(Record):
    """Tokens of one reply of a model."""

    prompt: int = Field(ge=0)
    """All that it read."""
    completion: int = Field(ge=0)
    """All that it wrote, reasoning included."""
    reasoning: int = Field(default=0, ge=0)
    """Reasoning tokens among the completion tokens; 0 where the model does not report them."""


class WorkspaceCall(Record):
    """The place of an attempt in the trajectory of a program that works in a workspace."""

    action: Literal["evaluate", "submit", "end"]
    """`./evaluate`, `./submit`, or the best source so far, which is taken where the program ends without submitting."""
    file: str | None = None
    """Name of the file; None at the end."""
    elapsed_s: float = Field(ge=0)
    """Time of the program before the call, evaluations excluded."""
    ended: Literal["submitted", "exited", "minutes", "tokens"] | None = None
    """Why the program ended; None for an evaluation."""


class Attempt(Record):
    """One submission, or one reply of a model in which none could be read."""

    schema_version: Literal[1] = 1
    problem: str
    agent: str | None = None
    """Author, as tables name it; None where it is not given."""
    sample: int = Field(default=0, ge=0)
    """Number of the episode among those on the same problem and configuration."""
    turn: int = Field(default=0, ge=0)
    """Number of the reply, or of the submission, within its episode."""
    file: str | None = None
    """Name of the file that the source was read from."""
    workspace: WorkspaceCall | None = None
    """Place in a trajectory; None for agents that reply turn by turn. `reply` is the output before the call then."""
    requested: EvalConfig = Field(validation_alias=AliasChoices("requested", "asked"))
    """The configuration as requested, `asked` in files of earlier versions; the feedback holds the resolved one."""
    request_key: str | None = None
    """`EvaluationRequest.key` under the resolved configuration, equal for equal requests; None without feedback."""
    source: Text | None = None
    """The submission; None where the reply holds no submission."""
    reply: Text | None = None
    """The text of the model; None where no model wrote it."""
    reasoning: Text | None = None
    """The model's reasoning, where it came apart from the reply."""
    finish_reason: str | None = None
    """Why the reply ended, in the endpoint's word: stop, tool_calls, length, content_filter; None where unknown."""
    refusal: Text | None = None
    """The endpoint's words where it refused the request or filtered the reply; None where it replied."""
    messages: tuple[ChatMessage, ...] | None = None
    """The model's prompt for this reply, where it was kept: the messages that are new since its last turn."""
    feedback: Feedback | None = None
    """Feedback; None where nothing was submitted, or where the evaluator raised an error or was late."""
    reward: float | None = None
    """Value of the submission, or of none; None where it was not judged, or not paid by anybody."""
    reward_name: str | None = None
    """The reward, as `find_reward` takes it."""
    tokens: TokenCounts | None = None
    cost_usd: float | None = Field(default=None, ge=0)
    """Price of the reply; None where no prices are known."""
    reply_s: float | None = Field(default=None, ge=0)
    """Wall time of the reply, waiting and retries included."""
    duration_s: float | None = None
    """Wall time of the evaluation as its caller saw it, waiting included."""

    @property
    def config(self) -> ResolvedConfig | None:
        """The resolved configuration; None without feedback."""
        return None if self.feedback is None else self.feedback.config

    @property
    def is_trial(self) -> bool:
        """Whether it is one evaluation among those before a submission, which alone counts for its author."""
        return self.workspace is not None and self.workspace.action == "evaluate"

    @property
    def is_submission(self) -> bool:
        """Whether it is the submission that ends the episode of a workspace."""
        return self.workspace is not None and self.workspace.action != "evaluate"

    @property
    def is_answered(self) -> bool:
        """Whether the attempt counts for its author: false where the endpoint refused an episode's first request."""
        return self.refusal is None or self.turn > 0

    @property
    def verdict(self) -> str:
        """`passed` or the failure; `infrastructure` where the evaluator found nothing.

        Without a submission: `refused` by the endpoint, `truncated` at the limit of tokens, else `no_submission`.
        """
        if self.source is None:
            return (
                REFUSED
                if self.refusal is not None
                else TRUNCATED
                if is_truncated(self.finish_reason)
                else NO_SUBMISSION
            )
        if self.feedback is None:
            return Failure.INFRASTRUCTURE.value
        return "passed" if self.feedback.failure is None else self.feedback.failure.value

    def to_line(self) -> str:
        """One line of JSON, without its end."""
        # Not pydantic's own JSON, which cannot carry lone surrogates.
        return json.dumps(self.model_dump(mode="json"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Reads what `to_line` wrote.

        Raises:
            ConfigError: it is something else; the message names the field, what was expected and what came.
        """
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"no JSON: {error}") from None
        if not isinstance(content, dict):
            raise ConfigError(f"expected an attempt as a JSON object, got {type(content).__name__}")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError("; ".join(_complaint(dict(each)) for each in error.errors()[:MAX_COMPLAINTS])) from None


NO_SUBMISSION, TRUNCATED, REFUSED = "no_submission", "truncated", "refused"
"""Verdicts of replies without a submission."""

_CUT_OFF = frozenset({"length", "max_tokens", "model_length"})
MAX_COMPLAINTS = 3


def is_truncated(finish_reason: str | None) -> bool:
    """Whether a reply ended at a limit of tokens, by the words of several servers.

    Example:
        >>> is_truncated("length"), is_truncated("stop"), is_truncated(None)
        (True, False, False)
    """
    return finish_reason is not None and finish_reason.lower() in _CUT_OFF


def _complaint(error: dict[str, object]) -> str:
    """A finding of pydantic at one place, in one line."""
    place = error["loc"]
    assert isinstance(place, tuple)
    name = ".".join(map(str, place)) or "the record"
    kind = error["type"]
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name} is no field of an attempt"
    return f"{name}: {error['msg']}, got {str(error['input'])[:40]!r}"


def request_key(problem: str, source: str, feedback: Feedback) -> str:
    """The key that equal requests share, whatever they left open: that of the resolved configuration."""
    return EvaluationRequest(problem=problem, source=source, config=feedback.config.as_request()).key
