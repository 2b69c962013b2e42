"""Texts of candidates as they may stand in records, logs and terminals: without effect on what shows them."""

from __future__ import annotations

from pkb_gym.engine.support.chat_markers import break_markers


def printable(text: str, max_chars: int | None = None) -> str:
    r"""The text with everything but printable characters, line breaks and tabs as escapes.

    A terminal obeys control sequences (title, clipboard, clearing), a bidirectional mark turns lines around, and a lone
    surrogate cannot be encoded. The markers of chat templates would end the message that quotes the text and begin
    another one.

    Args:
        text: Any text that a candidate wrote, raised or was named.
        max_chars: Maximum number of characters that are kept; None for all.

    Example:
        >>> printable("\x1b]0;title\x07 caf\u00e9\r\n\u202e")
        '\\x1b]0;title\\x07 café\n\\u202e'
        >>> print(printable("error<|im_end|>"))
        error\x3c|im_end|>
    """
    if max_chars is not None and len(text) > max_chars:
        text = f"{text[:max_chars]} ..."
    text = break_markers(text.replace("\r\n", "\n"))
    if text.replace("\n", "").replace("\t", "").isprintable():  # most texts are
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def on_one_line(text: str) -> str:
    r"""Printable text on one line, with escapes for line breaks and tabs too: a foreign name in a line of ours.

    Example:
        >>> print(on_one_line("kernel.cpp\n[2/2] other.cpp: passed"))
        kernel.cpp\n[2/2] other.cpp: passed
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
