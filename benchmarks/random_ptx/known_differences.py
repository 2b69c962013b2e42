"""Differences between the emulator and a GPU whose cause is known.

The emulator keeps to the manual of PTX in them, or PTX leaves the choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.random_ptx.comparison import Difference


@dataclass(frozen=True)
class Known:
    """One cause.

    Attributes:
        name: in results.
        instruction: Markdown.
        on_gpus: the behaviour of a GPU, Markdown.
        holds: whether it is the cause of a difference.
    """

    name: str
    instruction: str
    on_gpus: str
    holds: Callable[[Difference], bool]


_GUARDED = re.compile(r"@!?%\w+ (testp|set\.\w+(\.\w+)?\.f32)\.")
_TO_WHOLE = re.compile(r"cvt\.rzi\.[su]64\.f16\b")
_SHIFT = re.compile(r"(@!?%\w+ )?shl\.b16 %\w+, %?\w+, \d+;")
_TWO_NAN = re.compile(r"(add|sub|mul|fma|div|min|max)(\.\w+)*\.f64\b")
_FLUSHED = re.compile(r"(add|sub|mul|fma|div|rcp)(\.\w+)*\.ftz(\.\w+)*\.f32\b")
_LEAST_NORMAL, _SIGN = 0x00800000, 0x80000000


def _is_flushed(difference: Difference) -> bool:
    pairs = [[int(bits, 16) & ~_SIGN for bits in pair] for pair in difference.results if pair[0] != pair[1]]
    return all(pair == [_LEAST_NORMAL, 0] for pair in pairs)


KNOWN = (
    Known(
        "guard",
        "`testp` and `set` to f32 with a guard",
        "ptxas leaves the last step without the guard: the result changes where the guard is false",
        lambda difference: _GUARDED.match(difference.text) is not None,
    ),
    Known(
        "f16 to 64 bits",
        "`cvt.rzi.s64.f16`, `cvt.rzi.u64.f16`",
        "rounded to nearest",
        lambda difference: _TO_WHOLE.match(difference.form) is not None,
    ),
    Known(
        "shift by a literal",
        "`shl.b16` by a literal beyond 16 bits",
        "the literal is cut",
        lambda difference: _SHIFT.match(difference.text) is not None,
    ),
    Known(
        "NaN of f64",
        "f64 arithmetic on two NaN",
        "either of them, as ptxas orders operands, here the first; `max` and `min` of one register are that register",
        lambda difference: difference.both_nan and _TWO_NAN.match(difference.form) is not None,
    ),
    Known(
        "flushed",
        "`.ftz` of a product or reciprocal that rounds up to the least normal number",
        "zero",
        lambda difference: _FLUSHED.match(difference.form) is not None and _is_flushed(difference),
    ),
)


def cause(difference: Difference) -> str:
    """The name of the known cause of a difference; "" if none is known."""
    return next((known.name for known in KNOWN if known.holds(difference)), "")
