"""The length of texts for models: an estimate, since no tokenizer comes with the dependencies."""

from __future__ import annotations

CHARS_PER_TOKEN = 3.5
"""Characters of a token: o200k_base and cl100k_base have 3.54 to 3.57 in the task texts of the 87 problems."""


def tokens(text: str) -> float:
    """Tokens of a text, estimated from its length."""
    return len(text) / CHARS_PER_TOKEN
