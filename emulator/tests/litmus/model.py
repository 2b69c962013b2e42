"""The memory consistency model of the PTX ISA (chapter 8), over the executions of a litmus program.

An execution chooses the write that each read returns the value of, the order of writes of a location, and the order of
fence.sc operations; the axioms of section 8.10 say whether it is allowed. The sections are those of PTX ISA 8.9 and
later; the formal reading follows Lustig, Sahasrabuddhe and Giroux (ASPLOS 2019), figures 4 and 7.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from emulator.tests.litmus.frame import Frame
from emulator.tests.litmus.paths import INITIAL, Event, paths
from emulator.tests.litmus.program import Program
from emulator.tests.litmus.relation import Relation

Outcome = tuple[tuple[str, int], ...]
"""Registers as "thread:name" and locations with their last values, sorted by name."""


@dataclass(frozen=True)
class Synchronisation:
    """What the values that reads return and the order of fences make of a frame.

    Attributes:
        frame: Events, and what their order in each thread says.
        source: For each event that reads, the number of the write that it returns the value of; -1 of others.
        fences: Fence-SC order.
    """

    frame: Frame
    source: tuple[int, ...]
    fences: Relation

    @property
    def events(self) -> tuple[Event, ...]:
        """All events."""
        return self.frame.events

    def relation(self, pairs: Iterable[tuple[int, int]]) -> Relation:
        """A relation over the events."""
        return Relation(len(self.events), pairs)

    @cached_property
    def reads_from(self) -> Relation:
        """From writes to the reads that return their values."""
        return self.relation((w, r) for r, w in enumerate(self.source) if w >= 0)

    @cached_property
    def observation(self) -> Relation:
        """Observation order (8.9.2): from a write to a morally strong read of its value, and on through atomics."""
        return (self.reads_from & self.frame.morally_strong).closed()

    @cached_property
    def synchronises(self) -> Relation:
        """Pairs of operations of which the first synchronises with the second (8.9.4)."""
        releases, acquires = self.frame.patterns
        patterns = self.relation(
            (first, last)
            for first, write in releases
            for read, last in acquires
            if (write, read) in self.observation and (first, last) in self.frame.morally_strong
        )
        return patterns | self.fences | self.frame.meetings

    @cached_property
    def base_causality(self) -> Relation:
        """Base causality order (8.9.5)."""
        return (self.frame.follows | self.synchronises).closed()

    def preserve(self, base: Relation) -> Relation:
        """The part of a base causality order that proxies preserve, for accesses to one location (8.9.5).

        What the async proxy accesses after the generic proxy needs a proxy fence on the way (8.6, "Proxies"). The other
        way there is one implicit in the completion ("cp.async.bulk").
        """

        def is_preserved(a: int, b: int) -> bool:
            x, y = self.events[a], self.events[b]
            if x.is_async or not y.is_async or x.thread == INITIAL:
                return True
            return any((a, fence) in base and (fence, b) in base for fence in self.frame.proxy_fences)

        return self.relation((a, b) for a, b in base & self.frame.overlapping if is_preserved(a, b))

    @cached_property
    def causality(self) -> Relation:
        """Causality order of accesses to one location (8.9.5)."""
        preserved = self.preserve(self.base_causality)
        return preserved | self.observation.then(preserved)

    @cached_property
    def is_possible(self) -> bool:
        """Whether the axioms hold that say nothing of the order of writes."""
        if any((b, a) in self.base_causality for a, b in self.fences):  # 8.10.2, Fence-SC
            return False
        if not (self.reads_from | self.frame.dependencies).is_acyclic:  # 8.10.4, no thin air
            return False
        return not any((r, w) in self.causality for w, r in self.reads_from)  # 8.10.6, causality, first part

    @cached_property
    def races(self) -> tuple[tuple[int, int], ...]:
        """Pairs of conflicting accesses in a data race (8.7.1)."""
        pairs = itertools.combinations(range(len(self.events)), 2)
        return tuple(pair for pair in pairs if self._races(*pair))

    def _races(self, a: int, b: int) -> bool:
        x, y = self.events[a], self.events[b]
        if (a, b) not in self.frame.overlapping or (x.put is None and y.put is None):
            return False
        return not any((a, b) in order or (b, a) in order for order in (self.frame.morally_strong, self.causality))


@dataclass(frozen=True)
class Execution:
    """A candidate execution.

    Attributes:
        by: Reads and fences.
        stores: Order of the writes of each location, total here: see `coherence`.
    """

    by: Synchronisation
    stores: Relation

    @cached_property
    def coherence(self) -> Relation:
        """Coherence order (8.9.6): partial, since writes in a data race are unrelated."""
        return (self.stores & (self.by.frame.morally_strong | self.by.causality)).closed()

    def from_reads(self, order: Relation) -> Relation:
        """From reads to the writes that come, in an order, after the one they return the value of (8.9.7)."""
        result = Relation(len(self.by.source))
        for read, source in enumerate(self.by.source):
            if source >= 0:
                result.rows[read] = order.rows[source] & ~(1 << read)
        return result

    @cached_property
    def is_allowed(self) -> bool:
        """Whether all axioms hold (8.10)."""
        by, strong = self.by, self.by.frame.morally_strong
        if not by.is_possible:
            return False
        if any((b, a) in self.stores for a, b in by.causality):  # 8.10.1, coherence
            return False
        from_reads = self.from_reads(self.coherence)
        if not (from_reads & strong).then(self.coherence & strong).is_irreflexive:  # 8.10.3, atomicity of atomics
            return False
        communication = (by.reads_from | self.coherence | from_reads) & strong
        if not (communication | by.frame.overlapping_in_order).is_acyclic:  # 8.10.5, one location
            return False
        return from_reads.then(by.causality).is_irreflexive  # 8.10.6, causality, second part

    @property
    def is_sequential(self) -> bool:
        """Whether some interleaving of the threads gives this execution."""
        communication = self.by.reads_from | self.stores | self.from_reads(self.stores)
        return (communication | self.by.frame.follows | self.by.frame.met_in_time).is_acyclic

    def last_values(self) -> dict[str, int]:
        """The value of each location after the execution."""
        events = enumerate(self.by.events)
        return {event.location: event.put for n, event in events if event.put is not None and not self.stores.rows[n]}


def executions(program: Program) -> Iterator[tuple[Execution, Outcome]]:
    """The executions of a program that the axioms allow, with their outcomes."""
    ways = [tuple(paths(program, thread)) for thread in range(len(program.threads))]
    initial = tuple(Event(INITIAL, -1, location=location, put=0) for location in program.locations)
    for chosen in itertools.product(*ways):
        frame = Frame(program, (*initial, *(event for path in chosen for event in path.events)))
        registers = {
            f"{n}:{each.register}": 0 for n, thread in enumerate(program.threads) for each in thread if each.register
        }
        registers.update((f"{n}:{name}", value) for n, path in enumerate(chosen) for name, value in path.registers)
        for source in itertools.product(*map(frame.sources, range(len(frame.events)))):
            for fences in frame.orders_of_fences:
                by = Synchronisation(frame, source, fences)
                for stores in frame.orders_of_stores if by.is_possible else ():
                    execution = Execution(by, stores)
                    if execution.is_allowed:
                        yield execution, tuple(sorted([*registers.items(), *execution.last_values().items()]))
