"""Events of the threads of a litmus program, for each choice of the values that loads return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emulator.tests.litmus.program import SCOPES, Instruction, Program

INITIAL = -1
"""Thread of the writes before the program."""


@dataclass(frozen=True)
class Event:
    """What an instruction does to memory or to the order of memory operations.

    Attributes:
        thread: Number of the thread, or `INITIAL`.
        index: Index of the instruction in its thread.
        instruction: The instruction; None of initial writes.
        location: Location that is read or written; empty of other events.
        got: Value that is read; None where nothing is.
        put: Value that is written; None where nothing is.
        is_async: Whether it is performed by the async proxy.
    """

    thread: int
    index: int
    instruction: Instruction | None = None
    location: str = ""
    got: int | None = None
    put: int | None = None
    is_async: bool = False

    @property
    def verb(self) -> str:
        """Verb of the instruction."""
        return "" if self.instruction is None else self.instruction.verb

    @property
    def is_strong(self) -> bool:
        """Whether it is a strong operation."""
        return self.instruction is not None and self.instruction.is_strong and not self.is_async

    @property
    def scope(self) -> int:
        """Index of its scope in `SCOPES`; -1 of weak operations."""
        if not self.is_strong or self.instruction is None or self.instruction.scope is None:
            return -1
        return SCOPES.index(self.instruction.scope)

    @property
    def is_sequential_fence(self) -> bool:
        """Whether it is a fence.sc."""
        return self.instruction is not None and self.verb == "fence" and self.instruction.order == "sc"

    @property
    def acquires(self) -> bool:
        """Whether it is an acquire operation or fence."""
        return self.instruction is not None and self.instruction.order in ("acquire", "acq_rel", "sc")

    @property
    def releases(self) -> bool:
        """Whether it is a release operation or fence, and writes where it is no fence."""
        if self.instruction is None or (self.verb != "fence" and self.put is None):
            return False
        return self.instruction.order in ("release", "acq_rel", "sc")


@dataclass(frozen=True)
class Path:
    """One way through a thread: its events, and the registers at its end."""

    events: tuple[Event, ...]
    registers: tuple[tuple[str, int], ...]


def values(program: Program) -> dict[str, set[int]]:
    """Values that each location may have, at least those."""
    found: dict[str, set[int]] = {location: {0} for location in program.locations}
    additions = sum(each.verb in ("add", "red") for thread in program.threads for each in thread)
    for _ in range(additions + 2):
        anything = set().union(*found.values()) if found else {0}
        for thread in program.threads:
            for each in thread:
                if each.verb == "bulk":
                    found[each.location] |= found[each.source]
                elif each.writes:
                    stored = anything if isinstance(each.value, str) else {each.value}
                    if each.verb in ("add", "red"):
                        stored = {old + new for old in found[each.location] for new in stored}
                    found[each.location] |= stored
    return found


def paths(program: Program, thread: int) -> Iterator[Path]:
    """All ways through a thread, whatever values its loads may return."""
    possible = values(program)
    instructions = program.threads[thread]

    def go(index: int, events: tuple[Event, ...], registers: dict[str, int]) -> Iterator[Path]:
        if index == len(instructions):
            yield Path(events, tuple(sorted(registers.items())))
            return
        each = instructions[index]
        if each.verb == "if":
            if registers[each.register] == each.value:
                yield from go(index + 1, events, registers)
            else:
                yield from go(len(instructions), events, registers)
        elif each.verb == "bulk":
            for got in sorted(possible[each.source]):
                load = Event(thread, index, each, each.source, got=got, is_async=True)
                store = Event(thread, index, each, each.location, put=got, is_async=True)
                yield from go(index + 1, (*events, load, store), registers)
        elif each.verb == "st":
            put = registers[each.value] if isinstance(each.value, str) else each.value
            yield from go(index + 1, (*events, Event(thread, index, each, each.location, put=put)), registers)
        elif each.reads:
            for got in sorted(possible[each.location]):
                if each.until is not None and got != each.until:
                    continue
                put = written(each, got, registers)
                event = Event(thread, index, each, each.location, got=got, put=put)
                known = registers | {each.register: got} if each.register else registers
                yield from go(index + 1, (*events, event), known)
        else:
            yield from go(index + 1, (*events, Event(thread, index, each)), registers)

    yield from go(0, (), {})


def written(each: Instruction, got: int, registers: dict[str, int]) -> int | None:
    """What a load or an atomic stores when it has read a value; None where it stores nothing."""
    if each.verb == "ld" or (each.verb == "cas" and got != int(each.source)):
        return None
    operand = registers[each.value] if isinstance(each.value, str) else each.value
    return got + operand if each.verb in ("add", "red") else operand
