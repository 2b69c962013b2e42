"""What the axioms say of a litmus program: its outcomes, its races, and their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emulator.tests.litmus.model import Outcome, Synchronisation, executions
from emulator.tests.litmus.program import Program
from emulator.tests.litmus.relation import Relation

RaceClass = Literal["unsynchronised", "weak_order"]
At = tuple[int, int]
"""Thread, index of the instruction in it."""
Pair = tuple[At, At]
"""Both accesses of a race, sorted."""


@dataclass(frozen=True)
class Verdict:
    """What the axioms say of a program.

    Attributes:
        outcomes: All outcomes that are allowed.
        sequential: Outcomes of interleavings of the threads.
        races: Class of each pair of accesses that race in some allowed execution: the graver one where it has both.
        sequential_races: The same over interleavings alone.
    """

    outcomes: frozenset[Outcome]
    sequential: frozenset[Outcome]
    races: dict[Pair, RaceClass]
    sequential_races: dict[Pair, RaceClass]


def verdict(program: Program) -> Verdict:
    """Takes all allowed executions of a program together."""
    outcomes, sequential = set(), set()
    races: dict[Pair, RaceClass] = {}
    sequential_races: dict[Pair, RaceClass] = {}
    for execution, outcome in executions(program):
        outcomes.add(outcome)
        is_sequential = execution.is_sequential
        if is_sequential:
            sequential.add(outcome)
        for pair in execution.by.races:
            race_class = class_of(execution.by, *pair)
            _join(races, _at(execution.by, pair), race_class)
            if is_sequential:
                _join(sequential_races, _at(execution.by, pair), race_class)
    return Verdict(frozenset(outcomes), frozenset(sequential), races, sequential_races)


def _join(known: dict[Pair, RaceClass], pair: Pair, race_class: RaceClass) -> None:
    if known.get(pair) != "unsynchronised":
        known[pair] = race_class


def _at(execution: Synchronisation, pair: tuple[int, int]) -> Pair:
    first, second = sorted((execution.events[each].thread, execution.events[each].index) for each in pair)
    return first, second


def class_of(execution: Synchronisation, a: int, b: int) -> RaceClass:
    """The class of a race, as docs/how-it-works.md defines it.

    It is a weak order where a flag leads from one access to the other: a strong read of a write, or the same through
    atomics, whatever their order and scope; where both are strong, and a scope is too small; and where a strong load
    polls a plain store. An addition and a plain store may lose an update, whatever it reads.
    """
    x, y = execution.events[a], execution.events[b]
    flags = execution.relation((w, r) for w, r in execution.reads_from if execution.events[r].is_strong)
    flagged = (execution.frame.follows | execution.synchronises | flags).closed()
    if x.is_async or y.is_async:
        return _class_across_proxies(execution, flagged, (a, b) if (a, b) in flagged else (b, a))
    if x.is_strong and y.is_strong:
        return "weak_order"
    plain, strong = (y, x) if x.is_strong else (x, y)
    if strong.is_strong and plain.verb == "st":
        if strong.put is None:  # a load, or a compare-and-swap that fails
            return "weak_order"
        if strong.verb in ("add", "red"):
            flags = execution.relation(pair for pair in flags if pair not in ((a, b), (b, a)))
            flagged = (execution.frame.follows | execution.synchronises | flags).closed()
    return "weak_order" if (a, b) in flagged or (b, a) in flagged else "unsynchronised"


def _class_across_proxies(execution: Synchronisation, flagged: Relation, pair: tuple[int, int]) -> RaceClass:
    """A weak order where the flag itself is one.

    Where all but the proxy fence is there, it is one if a flag alone gives back a tile that has been read.
    """
    if pair not in flagged:
        return "unsynchronised"
    if pair not in execution.base_causality:
        return "weak_order"
    first, second = (execution.events[each] for each in pair)
    met = (execution.frame.follows | execution.frame.meetings).closed()
    is_tile = first.got is not None and second.put is not None
    return "weak_order" if is_tile and pair not in met else "unsynchronised"
