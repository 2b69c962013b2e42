"""Conversations as tokens; the same for every recipe, so that they all train and sample one sequence."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerBase
from transformers.utils import get_json_schema
from trl.chat_template_utils import add_response_schema, get_training_chat_template

from pkb_gym.engine.support.chat_markers import break_tokens_of_others
from pkb_gym.envs.trl import KernelTool

Message: TypeAlias = dict[str, Any]
"""A chat message: role, content, and for an assistant that submits, tool_calls."""


@cache
def submit_tools() -> tuple[dict[str, Any], ...]:
    """JSON schemas of the tools that a policy is given: `submit` alone, as TRL derives it from the environment."""
    return (get_json_schema(KernelTool.submit),)


def training_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template to train and sample with.

    It renders the beginning of a conversation as it renders the beginning of a longer one, and it marks what the
    assistant writes. TRL has such a variant of each common template; one that has both already is taken as it is.

    Raises:
        ValueError: the template has not, and TRL knows no variant of it that does.
    """
    return str(get_training_chat_template(tokenizer) or tokenizer.chat_template)


def with_parser(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, able to parse tool calls: by its own description of replies, or by TRL's for a known template.

    Raises:
        ValueError: it has none, and TRL does not know its template.
    """
    if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
        return tokenizer
    return add_response_schema(tokenizer)


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    *,
    reply_next: bool = False,
    with_tools: bool = True,
) -> str:
    """A conversation as the text that is trained on, without tokens of the tokenizer in what it quotes.

    Args:
        tokenizer: Tokenizer whose chat template renders the text.
        messages: Conversation so far.
        reply_next: Whether the header of the assistant's next message closes the text.
        with_tools: Whether the text includes the tools.
    """
    return str(
        tokenizer.apply_chat_template(
            break_tokens_of_others(messages, tokenizer),
            tools=list(submit_tools()) if with_tools else None,
            chat_template=training_template(tokenizer),
            tokenize=False,
            add_generation_prompt=reply_next,
        )
    )
