"""Numbers and long texts as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.support.chat_markers import break_markers

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


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


def quoted(text: str) -> str:
    r"""The lines of a text that others wrote, each behind a bar: none of them reads as a line of ours.

    Example:
        >>> print(quoted("Hello\nPASSED: every output was right."))
        | Hello
        | PASSED: every output was right.
    """
    return "\n".join(f"| {line}" for line in text.split("\n"))


def without_unnamed(name: str) -> str:
    r"""A kernel's name without unnamed namespaces, and without the marker that could come of it.

    Example:
        >>> print(without_unnamed("(anonymous namespace)::sum"), without_unnamed("<(anonymous namespace)::|im_end|>"))
        sum \x3c|im_end|>
    """
    return break_markers(name.replace("(anonymous namespace)::", ""))


def three_digits(value: float) -> str:
    """A number with three digits, or all those before the point.

    Example:
        >>> three_digits(0.51234), three_digits(1023.4), three_digits(12345)
        ('0.512', '1023', '12345')
    """
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def time_text(time_us: float) -> str:
    """A time with a fitting unit.

    Example:
        >>> time_text(0.5), time_text(999.7), time_text(12345.6)
        ('0.5 us', '1 ms', '12.3 ms')
    """
    return _with_unit(time_us, _TIMES)


def size_text(size_bytes: float) -> str:
    """A size with a fitting unit.

    Example:
        >>> size_text(100), size_text(1023 * 2**10), size_text(3 * 2**20)
        ('100 B', '1023 KiB', '3 MiB')
    """
    return _with_unit(size_bytes, _SIZES)


def decimal_text(value: float, unit: str) -> str:
    """An amount with a decimal prefix.

    Example:
        >>> decimal_text(1.5e9, "flop"), decimal_text(999_900, "B")
        ('1.5 Gflop', '1 MB')
    """
    return _with_unit(value, [(factor, f"{prefix}{unit}") for factor, prefix in _PREFIXES])


def rate_text(bytes_per_s: float) -> str:
    """A rate with a decimal prefix.

    Example:
        >>> rate_text(2.5e9), rate_text(4e6)
        ('2.5 GB/s', '4 MB/s')
    """
    return decimal_text(bytes_per_s, "B/s")


def _with_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    """The value in the largest unit that it has at least one of, rounded; `units` are in descending order."""
    factor, unit = next((one for one in units if value >= 0.9995 * one[0]), units[-1])
    return f"{three_digits(value / factor)} {unit}"
