"""Numbers and long texts as people read them."""

from __future__ import annotations


def cut_middle(text: str, max_chars: int) -> str:
    r"""The text, or its beginning and end with a note of how much is left out between.

    Example:
        >>> cut_middle("a" * 50 + "b" * 50, 60)
        'aaaaaaaaaaaaa\n[... 75 characters left out ...]\nbbbbbbbbbbbb'
    """
    if len(text) <= max_chars:
        return text
    note = "\n[... {} characters left out ...]\n"
    room = max_chars - len(note.format(len(text)))
    if room < 2:
        return text[:max_chars]
    head, tail = (room + 1) // 2, room // 2
    return text[:head] + note.format(len(text) - head - tail) + text[len(text) - tail :]


def time_text(time_us: float) -> str:
    """A time with three digits and a fitting unit.

    Example:
        >>> time_text(0.5), time_text(12345.6)
        ('0.5 us', '12.3 ms')
    """
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if time_us >= factor:
            return f"{time_us / factor:.3g} {unit}"
    return f"{time_us:.3g} us"


def size_text(size_bytes: float) -> str:
    """A size with three digits and a fitting unit.

    Example:
        >>> size_text(100), size_text(3 * 2**20)
        ('100 B', '3 MiB')
    """
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.3g} B"


def rate_text(bytes_per_s: float) -> str:
    """A rate in GB/s or MB/s.

    Example:
        >>> rate_text(2.5e9), rate_text(4e6)
        ('2.5 GB/s', '4 MB/s')
    """
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"
