"""The operations by which a native kernel synchronises with its peers, and its mutants that lack one of them.

Sources are read as text: calls of the communicator, words of memory that ranks write to each other, and uses of the
epoch. Where a helper header of `pkb/` does the synchronisation for the kernel, its text takes the place of the
`#include`, so that a mutant is a source of its own. Synchronisation among the threads of one rank is no part of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pkb_gym.engine
from tests.engine.mutants.cpp_operations import Kind, Span, omitted_epochs, spans, without_comments

HEADERS = Path(pkb_gym.engine.__file__).parent / "include" / "pkb"

CORE = frozenset({"comm.h", "host_comm.h", "symm.h", "symm_cpu.h", "symm_cuda.h"})
"""The communicator itself: kernels are tried against it, and it is never mutated."""


@dataclass(frozen=True)
class Operation:
    """One operation in a source whose headers have been inlined.

    Attributes:
        kind: Kind of the operation.
        file: File that it is written in: "expert", or the name of a header of `pkb/`.
        line: Line in that file, at least 1.
        code: Text of the operation, with white space collapsed.
        start, end: Place in the inlined text.
        replacement: Text that the mutant has in its place.
    """

    kind: Kind
    file: str
    line: int
    code: str
    start: int
    end: int
    replacement: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


@dataclass(frozen=True)
class Mutant:
    """A kernel without an operation.

    Attributes:
        operations: Operations that are gone, at least one.
        name: Place and text of the operations.
        source: Text of a candidate.
    """

    operations: tuple[Operation, ...]
    name: str
    source: str

    @property
    def kind(self) -> Kind:
        """Kind of its operations, which is the same for all."""
        return self.operations[0].kind


@dataclass(frozen=True)
class _Piece:
    """A run of lines from one file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class InlinedSource:
    """A kernel with the headers that synchronise for it in place of their `#include` lines."""

    pieces: tuple[_Piece, ...]

    @classmethod
    def of(cls, source: str, headers: Path = HEADERS) -> InlinedSource:
        """Inlines what the source includes of `headers`, directly or by way of other headers of it."""
        return cls(tuple(_inline("expert", source, headers, set())))

    @property
    def text(self) -> str:
        """The source as a candidate."""
        return "".join(piece.text for piece in self.pieces)

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations, in the order of the text."""
        return self._operations(spans)

    def _operations(self, find: Callable[[str], Iterator[Span]]) -> list[Operation]:
        text = self.text
        found = sorted(find(without_comments(text)), key=lambda span: span[1:3])
        return [
            Operation(kind, *self.origin(start), " ".join(text[start:end].split()), start, end, replacement)
            for kind, start, end, replacement in found
        ]

    def origin(self, position: int) -> tuple[str, int]:
        """File and line of a place in the inlined text."""
        for piece in self.pieces:
            if position < len(piece.text):
                return piece.file, piece.line + piece.text.count("\n", 0, position)
            position -= len(piece.text)
        raise IndexError(f"the text ends {position} characters before")

    def column(self, position: int) -> int:
        """Number of characters of its line before a place in the inlined text."""
        return position - (self.text.rfind("\n", 0, position) + 1)

    def mutants(self) -> list[Mutant]:
        """One without each operation, and one that has no epochs at all, if there are several operations."""
        operations = self.operations
        single = []
        seen: Counter[str] = Counter()
        for operation in operations:
            seen[str(operation)] += 1
            nth = seen[str(operation)]  # of those on one line
            name = f"{operation}, {nth}." if nth > 1 else str(operation)
            single.append(Mutant((operation,), name, self._replaced([operation])))
        omitted = self._operations(omitted_epochs)
        epochs = [
            operation
            for operation in operations
            if operation.kind is Kind.EPOCH and not any(call.start <= operation.start < call.end for call in omitted)
        ]
        if len(epochs) + len(omitted) < 2:
            return single
        return [*single, Mutant((*epochs, *omitted), "every epoch", self._replaced([*epochs, *omitted]))]

    def _replaced(self, operations: Sequence[Operation]) -> str:
        text = self.text
        for operation in sorted(operations, key=lambda operation: -operation.start):
            text = text[: operation.start] + operation.replacement + text[operation.end :]
        reads_untested = any("read_tagged(" in operation.replacement for operation in operations)
        return _with_untested_reads(text) if reads_untested else text


# ---- headers --------------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'^#include "pkb/(\w+\.h)".*\n', re.MULTILINE)


def _inline(file: str, text: str, headers: Path, seen: set[str]) -> Iterator[_Piece]:
    position = 0
    for include in _INCLUDE.finditer(text):
        name = include[1]
        if name in CORE or not _synchronises(name, headers):
            continue
        yield _Piece(file, text.count("\n", 0, position) + 1, text[position : include.start()])
        if name not in seen:
            seen.add(name)
            header = (headers / name).read_text(encoding="utf-8").replace("#pragma once\n", "\n")
            yield from _inline(name, header, headers, seen)
        position = include.end()
    rest = text[position:]
    yield _Piece(file, text.count("\n", 0, position) + 1, rest if rest.endswith("\n") or not rest else rest + "\n")


def _synchronises(name: str, headers: Path) -> bool:
    """Whether a header, or one that it includes, has to do with the communicator."""
    if name in CORE or not (headers / name).exists():
        return False
    text = (headers / name).read_text(encoding="utf-8")
    if re.search(r"\b(?:Comm|Device)\b", without_comments(text)):
        return True
    return any(_synchronises(include, headers) for include in _INCLUDE.findall(text))


# ---- parts of mutants -----------------------------------------------------------------------------------------------


def _with_untested_reads(mutant: str) -> str:
    """Adds `read_tagged`: `wait_tagged` that takes whatever word it finds."""
    header = (HEADERS / "tagged_cuda.h").read_text(encoding="utf-8")
    reads = "".join(reads for _, reads in untested_reads(header))
    return _after_includes(mutant, f'#include "pkb/tagged_cuda.h"\nnamespace pkb {{\n{reads}}}\n')


def untested_reads(text: str) -> Iterator[tuple[int, str]]:
    """The place behind each form of `wait_tagged` in a text, and `read_tagged`, which takes whatever word it finds."""
    function = r"^(?:template <[^\n]*>\n)?__device__[^\n]*\bwait_tagged\(.*?^}\n"
    for match in re.finditer(function, text, re.MULTILINE | re.DOTALL):
        reads = match[0].replace("wait_tagged", "read_tagged")
        yield match.end(), re.sub(r"while \(.*?\);", "while (false);", reads, flags=re.DOTALL)


def _after_includes(source: str, text: str) -> str:
    """Puts text before the first line that is neither an include nor a comment nor empty, outside of namespaces."""
    begin = re.search(r"^(?!#include|#pragma|//|\s*$)", source, re.MULTILINE)
    position = begin.start() if begin else len(source)
    return source[:position] + text + source[position:]
