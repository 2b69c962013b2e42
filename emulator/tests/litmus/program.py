"""Litmus programs: a few instructions for each of a few threads, and the places of the threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

SCOPES = ("cta", "cluster", "gpu", "sys")
ATOMICS = ("exch", "add", "cas", "red")
Place = tuple[int, int, int]
"""Rank, block, thread in the block."""

_TEXT = re.compile(
    r"(?:(?P<register>r\d+) = )?(?P<verb>[a-z]+)(?P<suffix>(?:\.[a-z_]+)*)(?P<operands>(?: [a-z]?\w+)*?)"
    r"(?: until (?P<until>\d+))?"
)

_NAME = re.compile(r"(?<![.\w])(?:r\d+|[su-z]\d?)(?![\w.])")


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        text: Text of the instruction, as `parse` reads it.
        verb: "ld", "st", "exch", "add", "cas", "red" (an addition), "fence", "if", "bar", "warp", "cluster", "proxy",
            "bulk" or "done".
        order: "weak", "volatile", "relaxed", "acquire", "release", "acq_rel" or "sc".
        scope: Scope of a strong instruction, as written; None of others.
        location: Name of the memory location; its first letter is `s` in shared memory. Empty where there is none.
        value: Number or register that is stored or added; the value that `if` asks for.
        source: Location that a bulk copy reads, or value that `cas` compares with.
        register: Register that is loaded or tested; empty where there is none.
        until: Value for which a load is repeated; None where it is done once.
    """

    text: str
    verb: str
    order: str = "weak"
    scope: str | None = None
    location: str = ""
    value: int | str = 0
    source: str = ""
    register: str = ""
    until: int | None = None

    @property
    def reads(self) -> bool:
        """Whether it reads memory."""
        return self.verb == "ld" or self.verb in ATOMICS

    @property
    def writes(self) -> bool:
        """Whether it writes memory."""
        return self.verb == "st" or self.verb in ATOMICS

    @property
    def waits_for_reads_only(self) -> bool:
        """Whether it is a wait for the sources of bulk copies alone."""
        return self.text == "done.read"

    @property
    def is_strong(self) -> bool:
        """Whether it is a strong operation (PTX ISA 8.4, "Operation types")."""
        return self.order != "weak"


@cache
def parse(text: str) -> Instruction:
    """An instruction from text.

    Examples: `r0 = ld.acquire.gpu x until 1`, `st y 1`, `r1 = add.relaxed.sys x 1`, `r0 = cas.acquire.gpu x 0 1`,
    `red.release.gpu x 1`, `fence.sc.gpu`, `if r0 1` (the rest of the thread is executed only then), `bar` (of the
    block), `warp`, `cluster`, `proxy` (fence.proxy.async), `bulk y s` (cp.async.bulk from s to y), `done` (waits for
    it), `done.read` (until its source has been read).

    Raises:
        ValueError: The text is none.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"no instruction: {text!r}")
    verb, operands = match["verb"], match["operands"].split()
    suffixes = match["suffix"].split(".")[1:]
    scope = suffixes[-1] if suffixes and suffixes[-1] in SCOPES else None
    order = next((suffix for suffix in suffixes if suffix not in SCOPES and suffix != "read"), "weak")
    if verb in ATOMICS and order == "weak":
        raise ValueError(f"atomics are strong: {text!r}")
    if order == "volatile":  # "relaxed with system scope", PTX ISA 8.4.2
        scope = "sys"
    until = None if match["until"] is None else int(match["until"])
    common = {"text": text, "verb": verb, "order": order, "scope": scope}

    def value(operand: str) -> int | str:
        return int(operand) if operand.isdigit() else operand

    if verb == "if":
        return Instruction(**common, register=operands[0], value=int(operands[1]))
    if verb == "bulk":
        return Instruction(**common, location=operands[0], source=operands[1])
    if verb == "cas":
        kept = {"location": operands[0], "source": operands[1], "value": value(operands[2])}
        return Instruction(**common, **kept, register=match["register"], until=until)
    if verb in ("ld", "st", *ATOMICS):
        stored = value(operands[1]) if len(operands) > 1 else 0
        return Instruction(**common, location=operands[0], value=stored, register=match["register"] or "", until=until)
    return Instruction(**common)


@dataclass(frozen=True)
class Program:
    """A litmus program.

    Attributes:
        family: Name of its shape, such as "MP".
        threads: Instructions of each thread.
        places: Place of each thread.
        in_cluster: Whether the blocks of a rank form one cluster.
    """

    family: str
    threads: tuple[tuple[Instruction, ...], ...]
    places: tuple[Place, ...]
    in_cluster: bool = False

    @classmethod
    def of(cls, family: str, threads: Sequence[str], places: Sequence[Place], *, in_cluster: bool = False) -> Program:
        """A program from the text of its threads, whose instructions stand between semicolons."""
        parsed = tuple(tuple(parse(part.strip()) for part in text.split(";") if part.strip()) for text in threads)
        return cls(family, parsed, tuple(places[: len(parsed)]), in_cluster)

    def distance(self, a: int, b: int) -> int:
        """Index in `SCOPES` of the smallest scope that holds two threads (PTX ISA 8.5, "Scope")."""
        one, other = self.places[a], self.places[b]
        if one[0] != other[0]:
            return 3
        if one[1] == other[1]:
            return 0
        return 1 if self.in_cluster else 2

    @property
    def locations(self) -> tuple[str, ...]:
        """Names of all locations, sorted."""
        named = {each.location for thread in self.threads for each in thread}
        return tuple(sorted(named.union(i.source for t in self.threads for i in t if i.verb == "bulk") - {""}))

    @property
    def key(self) -> str:
        """Text that programs share which differ in names of locations and registers or order of threads alone."""
        numbers = range(len(self.threads))
        turns = {(*numbers[first:], *numbers[:first]) for first in numbers}
        return min(self._key(turn) for turn in turns | {turn[::-1] for turn in turns})

    def _key(self, turn: Sequence[int]) -> str:
        names: dict[str, str] = {}

        def renamed(match: re.Match[str]) -> str:
            kind = "r" if match[0][0] == "r" else "s" if match[0][0] == "s" else "v"
            return names.setdefault(match[0], f"{kind}{len(names)}")

        warps = [(*place[:2], place[2] // 32) for place in self.places]
        parts = []
        for thread in turn:
            near = "".join(str(self.distance(thread, other) + (warps[thread] != warps[other])) for other in turn)
            body = "; ".join(_NAME.sub(renamed, each.text) for each in self.threads[thread])
            parts.append(f"{near}|{body}")
        return "\n".join(parts)

    def __str__(self) -> str:
        lines = [f"{self.family}, {'cluster' if self.in_cluster else 'no cluster'}"]
        for place, thread in zip(self.places, self.threads, strict=True):
            lines.append(f"  {place}: " + "; ".join(each.text for each in thread))
        return "\n".join(lines)
