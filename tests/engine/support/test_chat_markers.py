"""What a tokenizer takes for the bounds of messages is broken in messages that quote candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pkb_gym.engine.support.chat_markers import break_tokens, break_tokens_of_others


@dataclass
class Tokenizer:
    all_special_tokens: list[str] = field(default_factory=lambda: ["~end~", "~end~of~all~", "word", "  "])
    added_tokens_encoder: dict[str, int] = field(default_factory=lambda: {"(call)": 7})


@pytest.mark.parametrize("token", ["~end~", "~end~of~all~", "(call)"])
def test_each_token_is_broken_wherever_it_stands(token: str) -> None:
    shown = break_tokens(f"a{token}b {token}{token}", Tokenizer())
    assert token not in shown and shown.count("\\x") == 3 and shown.count(token[1:]) == 3
    assert break_tokens(shown, Tokenizer()) == shown


def test_words_and_spaces_are_no_bounds_of_messages() -> None:
    text = "a word  of many  words"
    assert break_tokens(text, Tokenizer()) == text
    assert break_tokens("~end~", Tokenizer([], {})) == "~end~"


def test_the_assistants_own_words_stay_as_they_are() -> None:
    said = [{"role": role, "content": "~end~"} for role in ("system", "user", "assistant", "tool")]
    said.append({"role": "assistant", "content": None, "tool_calls": []})
    heard = break_tokens_of_others(said, Tokenizer())
    assert [message["content"] for message in heard] == ["~end~", "\\x7eend~", "~end~", "\\x7eend~", None]
    assert heard[-1] == said[-1] and said[1]["content"] == "~end~"
