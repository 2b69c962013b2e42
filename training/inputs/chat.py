"""Conversations as text; the same for every recipe, so that they all train and sample one sequence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    gptoss_template,
    llama3_template,
    qwen3_5_template,
    qwen3_template,
    supports_tool_calling,
)

from pkb_gym.corpus.prompts import code_system_text
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.chat_markers import break_tokens_of_others
from pkb_gym.envs.trl import KernelTool

Message: TypeAlias = dict[str, Any]
"""A chat message: role, content, and for an assistant that submits, tool_calls."""

Submission: TypeAlias = Literal["tool", "code"]
"""tool: a policy submits with the tool `submit`; code: with a fenced block of code in its reply, without tools."""

TemplateOptions: TypeAlias = Mapping[str, Any]
"""Variables of a chat template, such as {"enable_thinking": False}."""

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a parsed message that hold reasoning."""

_PARSERS = (
    (r"<function=", qwen3_5_template),
    (r"<tool_call>\s*\{\s*\"name\"", qwen3_template),
    (r"to=functions\.", gptoss_template),
    (r"\{\"name\": \"[^\"]*\", \"parameters\":", llama3_template),
)
"""Form of a tool call in a rendered message -> TRL's parser of that form: Qwen3-Coder, Hermes, gpt-oss, Llama 3.1."""


@cache
def submit_tools() -> tuple[dict[str, Any], ...]:
    """JSON schemas of the tools that a policy is given: `submit` alone, as TRL derives it from the environment."""
    return (get_json_schema(KernelTool.submit),)


def submit_call(source: str) -> dict[str, Any]:
    """A call of `submit`, as parsers return it."""
    return {"type": "function", "function": {"name": "submit", "arguments": {"source": source}}}


def template_options(given: object) -> dict[str, Any]:
    """The variables of a chat template in an option of the command line or of a YAML file.

    Args:
        given: A dictionary, a JSON object as text, or None for no variables.

    Raises:
        ConfigError: It is neither.
    """
    try:
        options = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ConfigError(f"chat_template_kwargs: expected a JSON object, got {given!r} ({error})") from None
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ConfigError(f"chat_template_kwargs: expected a JSON object, got {given!r}")
    return options


def training_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template to train on all messages of the assistant with.

    It renders the beginning of a conversation as it renders the beginning of a longer one, and it marks what the
    assistant writes. TRL has such a variant of each common template; one that has both already is taken as it is.

    Raises:
        ValueError: the template has not, and TRL knows no variant of it that does.
    """
    return str(get_training_chat_template(tokenizer) or tokenizer.get_chat_template())


def sampling_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template to sample with: that of `training_template` where there is one, else the tokenizer's own.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the tokenizer has no chat template; take an instruction-tuned model")
    try:
        return training_template(tokenizer)
    except ValueError:
        return str(tokenizer.get_chat_template())


def with_parser(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, able to parse tool calls.

    By its own description of replies, by TRL's for a known template, or by TRL's for the form in which an unknown
    template renders a call.

    Raises:
        ConfigError: its template renders no tool calls, or in a form that is not known.
    """
    if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
        return tokenizer
    try:
        return add_response_schema(tokenizer)
    except ValueError:
        pass
    remedy = "take --submission code, or set `response_template` in the tokenizer"
    if not supports_tool_calling(tokenizer):
        raise ConfigError(f"the chat template has no tool calls; {remedy}")
    talk: list[Message] = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [submit_call("")]},
    ]
    rendered = str(tokenizer.apply_chat_template(talk, tokenize=False))
    for form, parser in _PARSERS:
        if re.search(form, rendered):
            tokenizer.response_template = parser
            return tokenizer
    raise ConfigError(f"the chat template's form of tool calls is not known; {remedy}")


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    reply_next: bool = False,
    with_tools: bool = True,
    template: str | None = None,
    options: TemplateOptions | None = None,
) -> str:
    """A conversation as the text that is trained on, without tokens of the tokenizer in what it quotes.

    Args:
        tokenizer: Tokenizer whose chat template renders the text.
        messages: Conversation so far; keys whose value is None are left out.
        reply_next: Whether the header of the assistant's next message closes the text.
        with_tools: Whether the text includes the tools.
        template: Chat template; None for that of `sampling_template`.
        options: Variables of the template.
    """
    # Datasets fill absent keys with None, and templates ask whether a message has a key.
    kept = [
        {"content": "", **{key: value for key, value in message.items() if value is not None}} for message in messages
    ]
    return str(
        tokenizer.apply_chat_template(
            break_tokens_of_others(kept, tokenizer),
            tools=list(submit_tools()) if with_tools else None,
            chat_template=sampling_template(tokenizer) if template is None else template,
            tokenize=False,
            add_generation_prompt=reply_next,
            **(options or {}),
        )
    )


def as_code(messages: Sequence[Message], language: str = "") -> list[Message]:
    """A conversation with calls of `submit` as one with fenced blocks of code, and answers as messages of the user.

    Args:
        messages: Conversation with calls of `submit`.
        language: Info string of the blocks, such as "cpp".
    """
    found: list[Message] = []
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "system":
            found.append({"role": "system", "content": code_system_text(content)})
        elif message["role"] == "tool":
            found.append({"role": "user", "content": content})
        elif calls := message.get("tool_calls"):
            blocks = [f"```{language}\n{_ended(call['function']['arguments']['source'])}```" for call in calls]
            found.append({"role": "assistant", "content": "\n\n".join([content, *blocks] if content else blocks)})
        else:
            found.append({"role": message["role"], "content": content})
    return found


def _ended(source: str) -> str:
    return source if source.endswith("\n") else f"{source}\n"
