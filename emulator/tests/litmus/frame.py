"""Relations over the events of an execution that do not depend on what reads return.

Sections are those of chapter 8 of the PTX ISA 8.9 and later, "Memory Consistency Model".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from emulator.tests.litmus.paths import INITIAL, Event
from emulator.tests.litmus.program import Program
from emulator.tests.litmus.relation import Relation


@dataclass(frozen=True)
class Frame:
    """Events of one path through each thread, and the initial writes before them.

    Attributes:
        program: The program.
        events: All events; those of a thread in its order.
    """

    program: Program
    events: tuple[Event, ...]

    def relation(self, is_related: Callable[[int, int], bool]) -> Relation:
        """The pairs of different events for which a condition holds."""
        pairs = itertools.permutations(range(len(self.events)), 2)
        return Relation(len(self.events), (pair for pair in pairs if is_related(*pair)))

    @cached_property
    def in_order(self) -> Relation:
        """Program order (8.9.1); asynchronous operations are no part of it (8.9.1.1)."""

        def is_before(a: int, b: int) -> bool:
            x, y = self.events[a], self.events[b]
            return x.thread == y.thread != INITIAL and not x.is_async and not y.is_async and x.index < y.index

        return self.relation(is_before)

    @cached_property
    def overlapping(self) -> Relation:
        """Pairs of accesses to one location."""
        return self.relation(lambda a, b: self.events[a].location == self.events[b].location != "")

    @cached_property
    def overlapping_in_order(self) -> Relation:
        """Program order of accesses to one location."""
        return self.in_order & self.overlapping

    @cached_property
    def morally_strong(self) -> Relation:
        """Pairs of operations that are morally strong relative to each other (8.7)."""
        return self.relation(self._is_morally_strong)

    def _is_morally_strong(self, a: int, b: int) -> bool:
        x, y = self.events[a], self.events[b]
        if x.is_async != y.is_async or (x.location and y.location and x.location != y.location):
            return False
        if (a, b) in self.in_order or (b, a) in self.in_order:
            return True
        if INITIAL in (x.thread, y.thread):
            return False
        distance = self.program.distance(x.thread, y.thread)
        return x.scope >= distance and y.scope >= distance

    @cached_property
    def patterns(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Release patterns as (first operation, write) and acquire patterns as (read, last operation) (8.8)."""
        releases = [(a, a) for a, x in enumerate(self.events) if x.put is not None and x.releases]
        acquires = [(a, a) for a, x in enumerate(self.events) if x.got is not None and x.acquires]
        for a, b in self.in_order:
            x, y = self.events[a], self.events[b]
            may_release = x.verb == "fence" or (x.put is not None and x.location == y.location)
            if x.releases and may_release and y.put is not None and y.is_strong:
                releases.append((a, b))
            may_acquire = y.verb == "fence" or (y.got is not None and x.location == y.location)
            # "Reductions do not form acquire patterns" with a fence that follows (8.11.1).
            if y.acquires and may_acquire and x.got is not None and x.is_strong and x.verb != "red":
                acquires.append((a, b))
        return releases, acquires

    @cached_property
    def meetings(self) -> Relation:
        """Barriers (8.9.4): the n-th of a block, a warp ("bar.warp.sync") or a cluster in each of its threads."""
        return self.relation(self._meets)

    def _meets(self, a: int, b: int) -> bool:
        x, y = self.events[a], self.events[b]
        if x.verb != y.verb or x.verb not in ("bar", "warp", "cluster") or x.thread == y.thread:
            return False
        (rank, block, thread), (other_rank, other_block, other) = (self.program.places[e.thread] for e in (x, y))
        if rank != other_rank or (x.verb != "cluster" and block != other_block):
            return False
        if x.verb == "warp" and thread // 32 != other // 32:
            return False
        return self._turn(x) == self._turn(y)

    def _turn(self, event: Event) -> int:
        thread = self.program.threads[event.thread]
        return sum(each.verb == event.verb for each in thread[: event.index])

    @cached_property
    def follows(self) -> Relation:
        """Program order, and asynchronous operations between their issue and the wait for their completion (8.9.1.1).

        The writes before the program precede all of it: the start of a kernel synchronises with its threads (8.9.4).
        """
        return self.relation(self._follows)

    def _follows(self, a: int, b: int) -> bool:
        x, y = self.events[a], self.events[b]
        if x.thread == INITIAL:
            return y.thread != INITIAL
        if x.thread != y.thread:
            return False
        if not x.is_async:
            return x.index < y.index
        if y.is_async:  # loads and stores of one operation are ordered
            return x.index == y.index and x.got is not None and y.put is not None
        if y.instruction is None or y.verb != "done" or x.index > y.index:
            return False
        return x.got is not None or not y.instruction.waits_for_reads_only

    @cached_property
    def met_in_time(self) -> Relation:
        """From a barrier in one thread to what follows it in the others."""
        return self.meetings.then(self.in_order)

    @cached_property
    def proxy_fences(self) -> tuple[int, ...]:
        """The proxy fences."""
        return tuple(number for number, event in enumerate(self.events) if event.verb == "proxy")

    @cached_property
    def dependencies(self) -> Relation:
        """From reads to the writes of their thread whose value or execution depends on them."""
        return self.relation(self._depends)

    def _depends(self, a: int, b: int) -> bool:
        x, y = self.events[a], self.events[b]
        if x.thread != y.thread or x.got is None or y.put is None or x.instruction is None or y.instruction is None:
            return False
        if x.is_async:
            return y.is_async and x.index == y.index
        if x.index >= y.index:
            return False
        between = self.program.threads[x.thread][x.index : y.index]
        is_tested = any(each.verb == "if" and each.register == x.instruction.register for each in between)
        return is_tested or x.instruction.until is not None or y.instruction.value == x.instruction.register

    def sources(self, read: int) -> list[int]:
        """The writes whose value a read may return; [-1] of another event."""
        event = self.events[read]
        if event.got is None:
            return [-1]
        return [
            write
            for write, other in enumerate(self.events)
            if write != read and other.put == event.got and other.location == event.location
        ]

    @cached_property
    def orders_of_fences(self) -> tuple[Relation, ...]:
        """Fence-SC orders: acyclic, and of each pair of morally strong fence.sc one before the other (8.9.3)."""
        numbers = [number for number, event in enumerate(self.events) if event.is_sequential_fence]
        strong = [pair for pair in itertools.combinations(numbers, 2) if pair in self.morally_strong]
        turns = itertools.product((False, True), repeat=len(strong))
        orders = (
            Relation(len(self.events), (pair[::-1] if back else pair for pair, back in zip(strong, each, strict=True)))
            for each in turns
        )
        return tuple(order for order in orders if order.is_acyclic)

    @cached_property
    def orders_of_stores(self) -> tuple[Relation, ...]:
        """Total orders of the writes of each location, the initial one first, those of a thread in program order."""
        by_location: dict[str, list[int]] = {}
        for number, event in enumerate(self.events):
            if event.put is not None:
                by_location.setdefault(event.location, []).append(number)
        orders = [
            [(first, *rest) for rest in itertools.permutations(others) if self._is_in_order(rest)]
            for first, *others in by_location.values()
        ]
        return tuple(
            Relation(len(self.events), (pair for order in chosen for pair in itertools.combinations(order, 2)))
            for chosen in itertools.product(*orders)
        )

    def _is_in_order(self, order: tuple[int, ...]) -> bool:
        return all((b, a) not in self.in_order for a, b in itertools.combinations(order, 2))
