"""Where in the text of a C++ or CUDA kernel it synchronises with other ranks: a small reader of calls, not a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum


class Kind(StrEnum):
    """The sort of an operation."""

    SIGNAL = "signal"
    """Signals peers: that this rank has begun, or that data lies in place."""
    WAIT = "wait"
    """Waits for a signal of a peer."""
    BARRIER = "barrier"
    """Does both."""
    PARITY = "parity"
    """Takes the halves of scratch by turns; the mutant always takes the first."""
    EPOCH = "epoch"
    """Distinguishes this call's words from those of earlier ones; the mutant always uses the first call's."""
    FENCE = "fence"
    """Orders memory accesses. A run cannot always show that one is missing: the hardware may keep the order."""


Span = tuple[Kind, int, int, str]
"""Kind, begin, end, and what a mutant has in its place."""

_COMM = r"(?<![\w.])(?:this->)?\w*comm_?(?:\.|->)"
_NAMES = r"(?:barrier|signal|tell|wait|arrive|meet)(?:_\w+)?"
_MEMBER = re.compile(rf"{_COMM}(?:template )?({_NAMES})\s*(?:<[^<>;(]*>)?\s*\(")
_STORE = re.compile(r"\b(?:pkb::)?(?:store_release|store_relaxed|store_tagged)\s*\(")
_LOAD = re.compile(r"\b(?:pkb::)?load_acquire\s*\(")
_TAGGED = re.compile(r"\b(?:pkb::)?wait_tagged\s*\(")
_PARITY = re.compile(rf"({_COMM}epoch)\s*(?:%\s*\w+|&\s*1\b)")
_EPOCH = re.compile(rf"({_COMM}epoch)\b(?!\s*[%&])")
_FENCE = re.compile(r"\b(?:__threadfence(?:_system)?|(?:\w+::)*fence_async_\w+|std::atomic_thread_fence)\s*\(")
_COMPARISON = re.compile(r"\s*(<=|>=|<|>|==|!=)\s*")
_NOTHING = "((void)0)"
_NO_OPERATION = frozenset({"signal_word", "barrier_counts"})
_OF_KERNELS = frozenset({"signal_begun", "wait_begun", "wait_all_begun", "wait_words"})
"""Functions of a kernel that go by one of these names do what the communicator's do."""


def spans(code: str) -> Iterator[Span]:
    """All operations, in no order.

    Args:
        code: Text of a kernel by `without_comments`.
    """
    direct = list(_direct_spans(code))
    yield from direct
    yield from _calls_of_wrappers(code, direct)
    for match in _PARITY.finditer(code):
        yield Kind.PARITY, match.start(), match.end(), f"({match[1]} * 0)"
    for match in _EPOCH.finditer(code):
        if not re.match(r"\s*=[^=]", code[match.end() :]):
            yield Kind.EPOCH, match.start(), match.end(), f"({match[1]} * 0 + 1)"
    for match in _FENCE.finditer(code):
        end = _closing(code, match.end() - 1)
        if _is_statement(code, end):
            yield Kind.FENCE, match.start(), end, _NOTHING


def omitted_epochs(code: str) -> Iterator[Span]:
    """Calls of signal() and wait() that leave the value out, which then is the epoch; the mutant's is always 1."""
    for match in _MEMBER.finditer(code):
        end = _closing(code, match.end() - 1)
        if match[1] in ("signal", "wait") and _arguments(code[match.end() : end - 1]) == 1 + (match[1] == "signal"):
            yield Kind.EPOCH, match.start(), end, f"{code[match.start() : end - 1]}, 1)"


def _direct_spans(code: str) -> Iterator[Span]:
    for match in _MEMBER.finditer(code):
        if match[1] not in _NO_OPERATION:
            yield _kind_of(match[1]), match.start(), _closing(code, match.end() - 1), _NOTHING
    for match in _STORE.finditer(code):
        end = _closing(code, match.end() - 1)
        if _is_statement(code, end):
            yield Kind.SIGNAL, match.start(), end, _NOTHING
    for match in _LOAD.finditer(code):
        comparison = _COMPARISON.match(code, _closing(code, match.end() - 1))
        if comparison is not None:
            end = _operand_end(code, comparison.end())
            yield Kind.WAIT, match.start(), end, "true" if comparison[1] in (">=", ">", "==") else "false"
    for match in _TAGGED.finditer(code):
        end = _closing(code, match.end() - 1)
        yield Kind.WAIT, match.start(), end, f"pkb::read_tagged({code[match.end() : end]}"


def _calls_of_wrappers(code: str, direct: list[Span]) -> Iterator[Span]:
    """Calls of functions that do nothing but synchronise, by their names and their bodies."""
    wrappers = set()
    for match in re.finditer(rf"(?<![\w.>])({_NAMES})\s*\(", code):
        body = re.match(r"\s*(?:const\s*)?\{", code[_closing(code, match.end() - 1) :])
        if body is not None:
            opening = _closing(code, match.end() - 1) + body.end() - 1
            synchronises = any(opening < start < _closing(code, opening) for _, start, _, _ in direct)
            if synchronises or match[1] in _OF_KERNELS:
                wrappers.add(match[1])
    for name in sorted(wrappers):
        for match in re.finditer(rf"(?<![\w.>:]){name}\s*(?:<[^<>;(]*>)?\s*\(", code):
            end = _closing(code, match.end() - 1)
            if _is_statement(code, end):
                yield _kind_of(name), match.start(), end, _NOTHING


def _kind_of(name: str) -> Kind:
    verb = name.partition("_")[0]
    return {"barrier": Kind.BARRIER, "meet": Kind.BARRIER, "wait": Kind.WAIT}.get(verb, Kind.SIGNAL)


def _arguments(inside: str) -> int:
    """How many arguments stand between the brackets of a call."""
    depth = commas = 0
    for character in inside:
        depth += (character in "({[") - (character in ")}]")
        commas += character == "," and depth == 0
    return commas + 1 if inside.strip() else 0


def _is_statement(code: str, end: int) -> bool:
    return code[end:].lstrip().startswith(";")


def _closing(code: str, opening: int) -> int:
    """Behind the bracket that closes the one at `opening`.

    Raises:
        ValueError: nothing closes it.
    """
    depth = 0
    for position in range(opening, len(code)):
        depth += (code[position] in "({[") - (code[position] in ")}]")
        if depth == 0:
            return position + 1
    line = code.count("\n", 0, opening) + 1
    raise ValueError(f"line {line} of the inlined source: nothing closes {code[opening]!r}")


def _operand_end(code: str, start: int) -> int:
    """The end of the right operand of a comparison: names, members, calls and additions."""
    position = start
    while position < len(code):
        if code[position] == "(":
            position = _closing(code, position)
        elif re.match(r"[\w.:+\- ]|->", code[position:]):
            position += 1
        else:
            break
    return start + len(code[start:position].rstrip())


def without_comments(text: str) -> str:
    """The text with comments and literals blanked; every other character keeps its place."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    # An include keeps its name.
    return re.sub(
        rf"(?:^#include[^\n]*$)|{pattern}",
        lambda match: match[0] if match[0].startswith("#") else re.sub(r"[^\n]", " ", match[0]),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
