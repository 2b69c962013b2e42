"""Differences between the emulator and a GPU whose cause is known.

The emulator keeps to the manual of PTX in them, or PTX leaves the choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.random_ptx.comparison import Difference


@dataclass(frozen=True)
class KnownDifference:
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
_TO_INTEGER = re.compile(r"cvt\.rzi\.[su](8|16|32|64)\.f16\b")
_SHIFT = re.compile(r"(@!?%\w+ )?shl\.b16 %\w+, %?\w+, \d+;")
_TWO_NAN = re.compile(r"(add|sub|mul|fma|div|min|max)(\.\w+)*\.f64\b")
_ONE_NAN = re.compile(r"(min|max)\.f(16|32)\b")
_FLUSHED = re.compile(r"(add|sub|mul|fma|div|rcp)(\.\w+)*\.ftz(\.\w+)*\.f32\b")
_LEAST_NORMAL, _SIGN = 0x00800000, 0x80000000
_LARGEST, _INFINITY = 0x7F7FFFFF, 0x7F800000


def _magnitudes(difference: Difference) -> list[list[int]]:
    return [[int(bits, 16) & ~_SIGN for bits in pair] for pair in difference.results if pair[0] != pair[1]]


def _is_flushed(difference: Difference) -> bool:
    return all(pair == [_LEAST_NORMAL, 0] for pair in _magnitudes(difference))


def _overflows(difference: Difference) -> bool:
    return all(sorted(pair) == [_LARGEST, _INFINITY] for pair in _magnitudes(difference))


def _was_elsewhere(difference: Difference) -> bool:
    return not difference.operands and any(set(bits) == {"e"} for pair in difference.results for bits in pair)


def _keeps_nan(difference: Difference) -> bool:
    guarded = difference.text.startswith("@") and difference.both_nan and difference.form.endswith(".f32")
    return guarded and difference.results[0][0] == difference.operands[-1]


KNOWN = (
    KnownDifference(
        "guard",
        "`testp` and `set` to f32 with a guard",
        "ptxas leaves the last step without the guard: the result changes where the guard is false",
        lambda difference: _GUARDED.match(difference.text) is not None,
    ),
    KnownDifference(
        "f16 to integers",
        "`cvt.rzi` of f16 to integers",
        "ptxas drops the rounding of some, which then round to nearest, and a conversion of bf16 to f16 before it",
        lambda difference: _TO_INTEGER.match(difference.form) is not None,
    ),
    KnownDifference(
        "shift by a literal",
        "`shl.b16` by a literal beyond 16 bits",
        "the literal is cut",
        lambda difference: _SHIFT.match(difference.text) is not None,
    ),
    KnownDifference(
        "NaN of f64",
        "f64 arithmetic on two NaN",
        "the one that ptxas puts second: mostly that written later, as here; `sub` of a literal flips its sign",
        lambda difference: difference.both_nan and _TWO_NAN.match(difference.form) is not None,
    ),
    KnownDifference(
        "NaN of copies",
        "`max` and `min` of f32 and f16 on two registers that hold copies of one NaN",
        "ptxas sees through the copies and leaves a move, which keeps the bits",
        lambda difference: (
            difference.both_nan
            and _ONE_NAN.match(difference.form) is not None
            and difference.operands[0] == difference.operands[1]
        ),
    ),
    KnownDifference(
        "flushed",
        "`.ftz` of a product or reciprocal that rounds up to the least normal number",
        "zero",
        lambda difference: _FLUSHED.match(difference.form) is not None and _is_flushed(difference),
    ),
    KnownDifference(
        "overflow",
        "`div.approx` of a quotient that just overflows",
        "the largest number, within the error of the approximation",
        lambda difference: difference.form.startswith("div.approx") and _overflows(difference),
    ),
    KnownDifference(
        "NaN that a guard keeps",
        "f32 instructions whose guard is false, after `neg` or `abs` of a NaN",
        "ptxas moves the sign into the selection between both results, which keeps the other bits",
        _keeps_nan,
    ),
    KnownDifference(
        "path",
        "instructions without operands",
        "run by other threads, since a predicate differs by one of the other causes",
        _was_elsewhere,
    ),
)


def cause(difference: Difference) -> str:
    """The name of the known cause of a difference; "" if none is known."""
    return next((known.name for known in KNOWN if known.holds(difference)), "")
