"""The rounds of a multi-turn rollout: tools are called, answers appended, and the policy goes on.

All rollouts of a rank go through a round together, and their submissions are judged side by side. Where a round needs
all ranks (generation is a collective, or evaluations take turns with training), they go through as many rounds as the
one that needs most; else each rank goes its own way.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, get_type_hints

from pkb_gym.training.inputs.chat import Message

logger = logging.getLogger(__name__)

ToolCall: TypeAlias = dict[str, Any]
"""A parsed tool call: {"type": "function", "function": {"name": ..., "arguments": {...}}}."""

Tool: TypeAlias = Callable[..., object]

Done = TypeVar("Done")


@dataclass
class TokenRow:
    """One sequence that the policy read and continued, which is one row of what it learns from.

    Attributes:
        prompt_ids: Tokens that the policy read before its first message in the row.
        completion_ids: Tokens after them, the policy's and the environment's.
        assistant_mask: Mask of the completion: 1 for tokens of the policy, else 0.
        logprobs: Log probabilities of `completion_ids` as they were sampled: 0 for the environment's, NaN where the
            sampler returns none.
        message_count: Number of messages of the policy in the completion.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    assistant_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    message_count: int = 0

    def append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float]) -> None:
        """Appends tokens of one author."""
        self.completion_ids = [*self.completion_ids, *ids]
        self.assistant_mask += [mask] * len(ids)
        self.logprobs += logprobs


@dataclass
class Rollout:
    """One conversation as it grows.

    Where earlier reasoning is left out of what the policy reads, each of its messages was sampled in another context,
    and the conversation has a row for each such context:

        all is read:  [prompt] reasoning 0, call 0 | answer 0 | reasoning 1, call 1
        trimmed:      [prompt] reasoning 0, call 0
                      [prompt, call 0, answer 0] reasoning 1, call 1

    Attributes:
        rows: Rows in order; one unless something was trimmed.
        messages: Messages after the prompt.
        length: Number of tokens after the prompt, trimmed ones included.
    """

    rows: list[TokenRow]
    messages: list[Message] = field(default_factory=list)
    length: int = 0

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the last message."""
        return self.messages[-1].get("tool_calls") or [] if self.messages else []

    @property
    def context_ids(self) -> list[int]:
        """The tokens that the policy reads next."""
        return self.rows[-1].prompt_ids + self.rows[-1].completion_ids

    def append_tool_messages(
        self, answers: Sequence[Message], ids: Sequence[int], trimmed: Sequence[int] | None = None
    ) -> None:
        """Appends what the environment answers.

        Args:
            answers: Messages of role "tool".
            ids: Tokens of the messages.
            trimmed: Tokens that the policy reads next; None for all tokens so far.
        """
        self.messages += answers
        self.length += len(ids)
        if trimmed is None or list(trimmed) == [*self.context_ids, *ids]:
            self.rows[-1].append(ids, mask=0, logprobs=[0.0] * len(ids))
        else:
            self.rows.append(TokenRow(list(trimmed)))

    def append_assistant_message(self, message: Message, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Appends what the policy writes."""
        self.messages.append(message)
        self.length += len(ids)
        self.rows[-1].append(ids, mask=1, logprobs=[math.nan] * len(ids) if logprobs is None else logprobs)
        self.rows[-1].message_count += 1


@dataclass
class CallCounts:
    """The number of calls of tools, and of calls that could not be carried out."""

    calls: int = 0
    failures: int = 0


@dataclass
class ToolBox:
    """The tools of one rollout.

    Attributes:
        tools: Functions by name; asynchronous ones are awaited.
        begin_message: Function called before the tools of a message.
        on_fault: Function that removes the rollout where a tool raises: it receives the source of the call, and returns
            the answer.
        counts: Counts of all rollouts.
    """

    tools: Mapping[str, Tool]
    begin_message: Callable[[], None]
    on_fault: Callable[[str], str]
    counts: CallCounts = field(default_factory=CallCounts)

    def count(self, tool_calls: Sequence[ToolCall]) -> None:
        """Counts the calls of one message, and those of them that cannot be carried out."""
        for call in tool_calls:
            self.counts.calls += 1
            self.counts.failures += self._refusal(*_name_and_arguments(call)) is not None

    async def answer(self, tool_calls: Sequence[ToolCall]) -> list[Message]:
        """Carries out the calls of one message, one after another: a later one may build on an earlier one."""
        self.begin_message()
        return [await self._answer(call) for call in tool_calls]

    async def _answer(self, call: ToolCall) -> Message:
        """A call that cannot be carried out is answered with the reason; an exception of a tool is no fault of it."""
        name, arguments = _name_and_arguments(call)
        if (reason := self._refusal(name, arguments)) is not None:
            return {"role": "tool", "name": name, "content": str({"error": reason})}
        try:
            found = self.tools[name](**arguments)
            answer = str(await found if isinstance(found, Awaitable) else found)
        except Exception:  # the call was right: whatever goes wrong from here on is not the policy's doing
            logger.warning("the tool %s failed; its rollout counts for nothing", name, exc_info=True)
            answer = self.on_fault(str(arguments.get("source", "")))
        return {"role": "tool", "name": name, "content": answer}

    def _refusal(self, name: str, arguments: object) -> str | None:
        """The reason why a call cannot be carried out; None where it can."""
        if name not in self.tools:
            return f"Tool {name} not found."
        if not isinstance(arguments, dict):
            return f"{name}: arguments must be an object, got {type(arguments).__name__}"
        tool = self.tools[name]
        try:
            inspect.signature(tool).bind(**arguments)
        except TypeError as error:
            return f"{name}: {error}"
        kinds = get_type_hints(tool)
        for argument, value in arguments.items():
            if kinds.get(argument) is str and not isinstance(value, str):
                return f"{name}: {argument} must be a text, got {type(value).__name__}"
        return None


def _name_and_arguments(call: ToolCall) -> tuple[str, Any]:
    function = call.get("function") or {}
    return str(function.get("name", "unknown")), function.get("arguments") or {}


def side_by_side(work: Mapping[int, Coroutine[None, None, Done]]) -> dict[int, Done]:
    """Does the work of many rollouts at once.

    Args:
        work: Work by index of the rollout.
    """

    async def all_of_it() -> list[Done]:
        return list(await asyncio.gather(*work.values()))

    return dict(zip(work, asyncio.run(all_of_it()), strict=True))
