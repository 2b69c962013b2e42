r"""Markers of chat templates in quoted texts: they would end the message that quotes them, and begin another one.

A marker is broken by an escape in place of its first character. Those of a policy are known by its tokenizer; for any
other reader what looks like a marker is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

_WORDS = (
    *("s", "bos", "eos", "pad", "unk", "cls", "sep", "mask", "eod", "eot", "eom", "eop", "sop", "sos", "bod", "nl"),
    *("user", "assistant", "system", "human", "bot", "gpt", "role", "turn", "message", "observation", "ipython"),
    *("think", "thinking", "thought", "reasoning", "answer", "response", "final", "analysis", "commentary"),
    *("tools?", "tool[_-](?:calls?|responses?|results?|outputs?|declare|list)", "function[_-](?:calls?|results?)"),
    *("invoke", "parameter", "arg_(?:key|value)", "image", "img", "video", "audio", "box", "quad", "ref"),
    *(
        "(?:start|end|begin(?:ning)?)_?of_?[a-z_]+",
        "(?:start|end|begin|stop)[_-](?:header|message|turn|text|document|sentence)",
    ),
    *("[a-z]+_token", "(?:fim|repo|file|gh|issue|jupyter|commit)_[a-z_]+", "empty_output", "filename"),
    *("(?:reserved|unused|extra|special|placeholder|dummy|control|ctrl)[a-z_]*[ _-]?\\d{1,6}", "0x[0-9a-f]{2}"),
    *("eo(?:h|a|sys)", "tokens_unused_\\d{1,6}", "longcat_[a-z_]+", "hy_[a-z]+", "[a-z]+_soft_token", "img_context"),
    *("toolcalls?", "available_tools", "tool_code", "(?:think|answer)_[a-z\\d_]+", "(?:function|parameter)=\\w{1,60}"),
    *("function", "lang_[a-z]+", "row_\\d_col_\\d", "global-img", "mask:\\d{1,3}", "fake_token_around_image", "robot"),
)
"""Words between angle brackets, in any case, as regular expressions."""

_CAPITALS = (
    *("INST", "BOS", "EOS", "PAD", "UNK", "CLS", "SEP", "MASK", "IMG", "REF", "THINK", "ARGS", "PREFIX", "SUFFIX"),
    *(
        "MIDDLE",
        "(?:SYSTEM|TOOL|AVAILABLE|MODEL|IMG|AUDIO|BEGIN|END|CALL)_[A-Z_]+",
        "gMASK",
        "sMASK",
        "sop",
        "eop",
        "(?:unused|UNUSED_TOKEN_|control_|extra_id_)\\d{1,4}",
    ),
    *("USER", "ASSISTANT", "AUDIO", "TRANSCRIBE"),
)
"""Words between square brackets."""

_OPENING = re.compile(
    "|".join(
        (
            r"<(?=[|\uff5c@]|_[a-z]+>)",  # <|im_end|>, <_user>
            rf"<(?=[/_]?(?i:{'|'.join(_WORDS)})(?:[_-]?(?:start|end|begin|id|pad|sep|\d{{1,6}}))?>)",  # </think>
            r"<(?=/?[A-Za-z_]\w{0,30}:[A-Za-z_]\w{0,30}>)",  # <seed:eos>, but no std::string
            r"<(?=</?SYS>>)",
            r"<(?=(?:PRE|SUF|MID)>|\w{1,40}\|>|\[[^\s\[\]<>]{1,40}\]>|#\w{1,20}#>)",  # <turn|>, <[EOS]>
            r">(?=>(?:QUESTION|ANSWER|DOMAIN|TITLE|ABSTRACT|INTRODUCTION|SUMMARY|COMMENT|PREFIX|SUFFIX|MIDDLE)<<)",
            r"\[(?=[|\uff5c]|[a-z]~\[)|\](?=~[a-z!]{1,3}[\[\]])",  # [|endofturn|], ]~b]
            rf"\[(?=/?(?:{'|'.join(_CAPITALS)})\])",
        )
    )
)


class Tokenizer(Protocol):
    """What is read of a tokenizer of transformers."""

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of the special tokens."""

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Text of each token that was added to the vocabulary -> its number."""


def break_markers(text: str) -> str:
    r"""The text without what looks like a marker of a chat template.

    Example:
        >>> print(break_markers("error<|im_end|> <seed:eos> vector<float>"))
        error\x3c|im_end|> \x3cseed:eos> vector<float>
    """
    return _OPENING.sub(lambda found: _escape(found[0]), text)


def break_tokens(text: str, tokenizer: Tokenizer) -> str:
    """The text without the special and the added tokens of a tokenizer, but for those of letters, digits and spaces."""
    pattern = _token_pattern(tuple(sorted({*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder})))
    return text if pattern is None else pattern.sub(lambda found: _escape(found[0][0]) + found[0][1:], text)


def break_tokens_of_others(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """A conversation whose messages to the assistant, which quote texts of candidates, hold no token of a tokenizer.

    Args:
        messages: Chat messages: role, content and more.
        tokenizer: Tokenizer of the assistant.
    """
    return [
        {**message, "content": break_tokens(message["content"], tokenizer)}
        if message["role"] in ("user", "tool") and isinstance(message["content"], str)
        else {**message}
        for message in messages
    ]


@lru_cache(maxsize=8)
def _token_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    markers = [token for token in tokens if len(token) > 1 and not all(c.isalnum() or c.isspace() for c in token)]
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True)))) if markers else None


def _escape(character: str) -> str:
    return f"\\x{ord(character):02x}"
