"""The events of a stream of chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DONE = "[DONE]"
"""Data of the event that ends a stream."""


def event_data(pieces: Iterable[bytes]) -> Iterator[str]:
    r"""The data of server-sent events, each as its last line comes.

    Lines end with a line feed alone: JSON strings may hold the other line breaks of Unicode as they are.

    Args:
        pieces: Bytes of the response, cut anywhere.

    Example:
        >>> list(event_data([b": ping\n\ndata: {}\r", b"\n\r\ndata: [DO", b"NE]"]))
        ['{}', '[DONE]']
    """
    data: list[str] = []
    for line in _lines(pieces):
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" ").decode(errors="replace"))
        elif data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            yield b"".join([*parts, line]).removesuffix(b"\r")
            parts = []
        parts.append(rest)
    yield b"".join(parts).removesuffix(b"\r")
