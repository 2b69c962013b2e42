"""What a policy and its environment write to each other, as tokens: prompts, replies, and answers to submissions.

The same for GRPO and for the evaluation of policies, for tool calls and for fenced code, for every chat template.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.text.reply import split_thoughts, take_source
from pkb_gym.envs.text.turn import shortened
from pkb_gym.training.inputs.chat import (
    REASONING_KEYS,
    Message,
    as_code,
    render,
    sampling_template,
    submit_call,
    submit_tools,
    with_parser,
)
from pkb_gym.training.inputs.dialogue_options import DialogueOptions

Tokens = list[int]

_SENTINEL = "the0source0of0a0submission"
"""Text that no template changes and no token boundary matters for: what follows it is the end of a message."""


class Dialogue:
    """Dialogues with one policy.

    Args:
        tokenizer: Tokenizer of the policy.
        options: Options of the dialogue.

    Raises:
        ConfigError: The tokenizer has no chat template, or, with `tool`, one without tool calls that can be parsed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: DialogueOptions | None = None) -> None:
        self.options = options or DialogueOptions()
        self._template = sampling_template(tokenizer)
        try:
            # TRL would read replies of code by a parser that it finds.
            self._tokenizer = with_parser(tokenizer if self._uses_tools else copy.copy(tokenizer))
            self._parses = True
        except ConfigError:
            if self._uses_tools:
                raise
            self._tokenizer, self._parses = tokenizer, False

    @property
    def _uses_tools(self) -> bool:
        return self.options.submission == "tool"

    def prompt_ids(self, prompt: Sequence[Message]) -> Tokens:
        """Tokens of a prompt, up to the header of the policy's first reply.

        Args:
            prompt: Messages of a row of `pkb export prompts`.
        """
        return self._context(prompt)

    def trimmed_ids(self, prompt: Sequence[Message], messages: Sequence[Message]) -> Tokens | None:
        """Tokens that the policy reads under `trim_reasoning`, up to the header of its next reply; else None.

        Args:
            prompt: Messages of the prompt.
            messages: Messages after the prompt, as `read` returns them, and the answers.
        """
        if not self.options.trim_reasoning:
            return None
        return self._context([*prompt, *map(self._without_reasoning, messages)])

    def read(self, reply: Sequence[int], context: Sequence[int], reference: str | None = None) -> Message:
        """The message that a reply is, with its submissions as calls of `submit`.

        Args:
            reply: Tokens of the reply.
            context: Tokens before the reply.
            reference: Source of the baseline, which replies may quote as code.
        """
        text = self.text(reply)
        parsed: Message = {"role": "assistant", "content": text}
        if self._parses:
            tools: list[Any] | None = list(submit_tools()) if self._uses_tools else None
            parsed = dict(parse_response(self._tokenizer, list(reply), prefix=list(context), tools=tools))
        if self._uses_tools:
            return parsed
        if split_thoughts(text).thoughts is None and any(parsed.get(key) for key in REASONING_KEYS):
            text = parsed["content"]  # reasoning in a channel of its own, whose marks the text has lost
        source = take_source(text, reference=reference, is_complete=self._has_ended(reply)).source
        message: Message = {"role": "assistant", "content": text}
        return message if source is None else {**message, "tool_calls": [submit_call(source)]}

    def answer_ids(self, answers: Sequence[Message], reply: Sequence[int] | None = None) -> Tokens:
        """Tokens between a reply that submits and the policy's next one.

        They are what the template adds to a made-up conversation, so that what the policy wrote is never tokenized
        again, and templates that render earlier messages otherwise than the last one do no harm.

        Args:
            answers: Messages of role "tool".
            reply: Tokens of the reply that is answered; one that was cut off is closed first. None for a whole one.
        """
        call = submit_call(_SENTINEL)
        call["function"]["name"] = answers[0].get("name") or "submit"
        talk: list[Message] = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        closing = self._after_sentinel(self._render(talk, reply_next=False))
        rest = self._after_sentinel(self._render([*talk, *answers], reply_next=True))
        # As many tokens of the tokenizer close a message whether or not another one follows.
        count = sum(1 for _ in self._token_pattern.finditer(closing))
        last = list(self._token_pattern.finditer(rest))[count - 1] if count else None
        is_whole = reply is None or self._has_ended(reply)
        begin = len(closing) if last is None else last.end() if is_whole else last.start()
        return self._ids(rest[begin:])

    def shortened(self, answer: str) -> str:
        """An answer within `max_feedback_tokens`; its verdict is kept."""
        if self.options.max_feedback_tokens is None:
            return answer
        return shortened(answer, self.options.max_feedback_tokens, lambda text: len(self._ids(text)))

    def room(self, tokens: int) -> int:
        """The number of tokens that a reply may have.

        Args:
            tokens: Number of tokens that the episode leaves.
        """
        return tokens if self.options.max_turn_tokens is None else min(tokens, self.options.max_turn_tokens)

    def _context(self, messages: Sequence[Message]) -> Tokens:
        return self._ids(self._render(messages, reply_next=True, with_tools=self._uses_tools))

    def _render(self, messages: Sequence[Message], *, reply_next: bool, with_tools: bool = False) -> str:
        return render(
            self._tokenizer,
            messages if self._uses_tools else as_code(messages),
            reply_next=reply_next,
            with_tools=with_tools,
            template=self._template,
            options=self.options.template,
        )

    def _ids(self, text: str) -> Tokens:
        found: Tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def text(self, reply: Sequence[int]) -> str:
        """The text of a reply, without special tokens."""
        return str(self._tokenizer.decode(list(reply), skip_special_tokens=True))

    def _has_ended(self, reply: Sequence[int]) -> bool:
        return bool(reply) and reply[-1] in self._tokenizer.all_special_ids

    def _without_reasoning(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        left_out = REASONING_KEYS if self._uses_tools else (*REASONING_KEYS, "tool_calls")  # the code is in the content
        kept = {key: value for key, value in message.items() if key not in left_out}
        return {**kept, "content": split_thoughts(message["content"]).answer.strip()}

    @staticmethod
    def _after_sentinel(text: str) -> str:
        return text[text.rindex(_SENTINEL) + len(_SENTINEL) :]

    @cached_property
    def _token_pattern(self) -> re.Pattern[str]:
        tokens = {*self._tokenizer.all_special_tokens, *self._tokenizer.added_tokens_encoder}
        return re.compile("|".join(map(re.escape, sorted(filter(None, tokens), key=len, reverse=True))) or r"(?!)")
