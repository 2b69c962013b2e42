"""A model's message, assembled from JSON as servers send it: whole, or in the pieces of a stream.

Servers differ: content may be a list of parts, arguments an object, and two calls may share an index. What is not
understood stays in the text of the reply, so that the record holds it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pkb_gym.agents.chat_errors import server_words
from pkb_gym.agents.protocol import SUBMIT, Reply
from pkb_gym.agents.submissions import as_text, source_of_arguments
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.envs.text.reply import split_thoughts

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers put reasoning that they keep apart from the content."""

FAILED = frozenset({"error", "abort"})
"""Reasons of an end that is the server's failure."""

Json: TypeAlias = Mapping[str, object]


class ReplyFailed(Exception):
    """Raised when a reply did not come whole, with the cause in the server's words; another request may succeed."""


@dataclass
class _Call:
    """A call of a tool, as its pieces come.

    Attributes:
        id: Identity that the server gave it; empty for none.
        name: Name of the tool.
        arguments: Arguments as JSON, or the source itself.
        is_source: Whether `arguments` is the input of a custom tool, which is no JSON.
    """

    id: str = ""
    name: str = ""
    arguments: str = ""
    is_source: bool = False

    def add(self, piece: Json) -> None:
        """Adds a piece of this call."""
        self.id = self.id or _text(piece.get("id"))
        custom, function = piece.get("custom"), piece.get("function")
        self.is_source = self.is_source or isinstance(custom, Mapping)
        given = custom if isinstance(custom, Mapping) else function if isinstance(function, Mapping) else piece
        name = _text(given.get("name"))
        if name != self.name:  # some servers repeat it in each piece
            self.name += name
        arguments = given.get("input") if self.is_source else given.get("arguments")
        if arguments is not None:
            self.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)

    @property
    def source(self) -> str | None:
        """The source that the call submits; None where it submits none."""
        if self.name.strip().rpartition(".")[2] != SUBMIT:
            return None
        return self.arguments if self.is_source else source_of_arguments(self.arguments)


@dataclass
class ChatAnswer:
    """The model's message so far.

    Attributes:
        content: Pieces of the text.
        reasoning: Pieces of the reasoning.
        calls: Calls of tools, in order.
        tokens: Numbers of tokens; None where they were not reported.
        cost_usd: Price that the endpoint reports, as routers do; None where it reports none.
        finish_reason: Why the reply ended; None where it has not, or nothing was reported.
    """

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    tokens: TokenCounts | None = None
    cost_usd: float | None = None
    finish_reason: str | None = None
    _open: dict[int, _Call] = field(default_factory=dict)
    """Call that further pieces belong to, by index."""

    def read(self, text: str) -> None:
        """Reads a whole completion, or a chunk of one.

        Raises:
            ReplyFailed: It is no JSON object, or holds an error.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise ReplyFailed(f"an answer that is no JSON: {text.strip()}") from None
        choices = body.get("choices") if isinstance(body, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        for place in (body, choice):
            error = place.get("error") if isinstance(place, dict) else None
            if error:
                raise ReplyFailed(server_words(error))
        if not isinstance(choices, list) and not (isinstance(body, dict) and isinstance(body.get("usage"), dict)):
            raise ReplyFailed(f"an answer without any choice: {server_words(body) or text.strip()}")
        self._read_usage(body.get("usage"))
        message = choice.get("message") or choice.get("delta")
        if isinstance(message, dict):
            self._add(message)
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        if self.finish_reason in FAILED:
            raise ReplyFailed(f"the reply ended with {self.finish_reason!r}")

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a message has come."""
        return not (self.content or self.reasoning or self.calls or self.finish_reason)

    def reply(self) -> Reply:
        """The complete reply; of several submissions the last counts, as models correct themselves."""
        split = split_thoughts("".join(self.content))
        content, submission = split.answer, None
        for call in self.calls:
            if (source := call.source) is not None:
                submission = source
            else:
                content += as_text(call.name, call.arguments or "{}")
        reasoning = "".join(self.reasoning) or split.thoughts
        return Reply(content, reasoning, submission, self.tokens, self.cost_usd, self.finish_reason)

    def _add(self, message: Json) -> None:
        self._add_content(message.get("content"))
        self._add_content(message.get("refusal"))
        for name in REASONING_FIELDS:
            text = message.get(name)
            if isinstance(text, str) and text:
                self.reasoning.append(text)
                break  # some servers fill both with the same
        calls = message.get("tool_calls")
        listed = calls if isinstance(calls, list) else [calls] if isinstance(calls, dict) else []
        if isinstance(legacy := message.get("function_call"), dict):
            listed = [*listed, {"function": legacy}]
        for place, piece in enumerate(listed):
            if isinstance(piece, dict):
                self._add_call(place, piece)

    def _add_content(self, content: object) -> None:
        """Adds a text, or a list of parts: texts, reasoning, and others as they are."""
        if isinstance(content, str):
            self.content.append(content)
        elif isinstance(content, list):
            for part in content:
                self._add_content(part)
        elif isinstance(content, dict):
            kind = content.get("type")
            text = content.get("text")
            if kind in ("thinking", "reasoning"):
                self.reasoning.append(_joined(content.get("thinking") or text or content.get("summary")))
            elif isinstance(text, str):
                self.content.append(text)
            else:
                self.content.append(f"\n{json.dumps(content)}\n")

    def _add_call(self, place: int, piece: Json) -> None:
        index = piece.get("index")
        # Pieces of a stream name their call; those of a whole message come in order.
        key = index if isinstance(index, int) else place
        call, given = self._open.get(key), _text(piece.get("id"))
        if call is None or (given and call.id and given != call.id):
            call = self._open[key] = _Call()
            self.calls.append(call)
        call.add(piece)

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("completion_tokens_details")
        self.tokens = TokenCounts(
            prompt=_count(usage.get("prompt_tokens")),
            completion=_count(usage.get("completion_tokens")),
            reasoning=_count(details.get("reasoning_tokens") if isinstance(details, dict) else None),
        )
        cost = usage.get("cost")
        self.cost_usd = float(cost) if isinstance(cost, int | float) and cost >= 0 and math.isfinite(cost) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _joined(value: object) -> str:
    """The texts of nested parts."""
    if isinstance(value, list):
        return "".join(map(_joined, value))
    return _joined(value.get("text")) if isinstance(value, dict) else _text(value)


def _count(value: object) -> int:
    """A number of tokens; routers report averages, with fractions."""
    return max(0, math.ceil(value)) if isinstance(value, int | float) and math.isfinite(value) else 0
