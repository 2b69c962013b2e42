"""A conversation in the form of chat endpoints and templates."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pkb_gym.agents.protocol import SUBMIT, Message

EMPTY = "(empty reply)"
"""Text in place of an empty message of the model, which endpoints refuse."""


def chat_messages(messages: Sequence[Message], *, with_tools: bool) -> list[dict[str, object]]:
    """The conversation as endpoints and templates take it.

    Args:
        messages: Conversation so far.
        with_tools: Whether submissions are calls of the tool; else they are fenced code, and answers are user messages.
    """
    found: list[dict[str, object]] = []
    for number, message in enumerate(messages):
        if message.role == "tool" and with_tools:
            found.append({"role": "tool", "tool_call_id": _call_id(number - 1), "content": message.content})
        elif message.role == "tool":
            found.append({"role": "user", "content": message.content})
        elif message.submission is None:
            found.append({"role": message.role, "content": message.content if message.content.strip() else EMPTY})
        elif with_tools:
            function = {"name": SUBMIT, "arguments": json.dumps({"source": message.submission})}
            call = {"id": _call_id(number), "type": "function", "function": function}
            found.append({"role": "assistant", "content": message.content, "tool_calls": [call]})
        else:
            fenced = f"{message.content}\n```\n{message.submission.rstrip()}\n```"
            found.append({"role": "assistant", "content": fenced.lstrip()})
    return found


def _call_id(number: int) -> str:
    """Nine letters and digits, as Mistral's templates want them."""
    return f"call{number:05d}"
