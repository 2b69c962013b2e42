"""The race detector's rules in their plainest form: full vector clocks of all threads that act, every access kept.

Random traces of two ranks, and the first of their events that races with an earlier one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SCOPES = ("cta", "gpu", "sys")
Thread = tuple[int, int, int]
"""Launch, block, thread in the block."""
Clock = dict[Thread, int]

DATA = (0x102000, 0x202000)
WORDS = (0x104000, 0x204000)
BLOCKS, THREADS = (0, 1), (0, 1, 32)
BLOCK_THREADS = 64


@dataclass(frozen=True)
class Access:
    """An access to one word."""

    thread: Thread
    time: int
    writes: bool
    strong: bool
    scope: str | None
    number: int
    """Index in the order of the trace."""


@dataclass
class Published:
    """What a strong store carries: by scope, the past of its thread then."""

    thread: Thread
    is_release: bool
    scope: str
    full: Clock
    fenced: dict[str, Clock]
    sequential: dict[str, Clock]
    led: Clock
    led_fenced: dict[str, Clock]


@dataclass
class State:
    """Of one thread."""

    clock: Clock = field(default_factory=dict)
    fenced: dict[str, Clock] = field(default_factory=dict)
    """Clock at the last fence of at least this scope, by scope."""
    read: dict[str, Clock] = field(default_factory=dict)
    """Clock that relaxed loads have seen, by the distance of the writer."""
    sequential: dict[str, Clock] = field(default_factory=dict)
    """Clock at the last fence.sc of at least this scope since the last barrier, by scope."""
    before: dict[str, Clock] = field(default_factory=dict)
    """The same of all threads, as far as barriers lead on from them."""
    observed: dict[str, Clock] = field(default_factory=dict)
    """`before` of the stores that it, or who met it at a barrier, has seen, by the distance of the writer."""
    led_fenced: dict[str, Clock] = field(default_factory=dict)
    """Clock of fences.sc of system scope, at its last fence of at least this scope, by scope."""
    led_read: dict[str, Clock] = field(default_factory=dict)
    """Clock of those fences that relaxed loads have seen, by the distance of the writer."""

    def led(self) -> Clock:
        """What came before fences.sc of system scope that happen before."""
        clock = dict(self.before.get("sys", {}))
        join(clock, self.sequential.get("sys", {}))
        return clock


def join(into: Clock, other: Clock) -> None:
    """Takes the later times."""
    for thread, time in other.items():
        into[thread] = max(into.get(thread, 0), time)


class Oracle:
    """Follows a trace."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self.states: dict[Thread, State] = {}
        self.ended: dict[int, Clock] = {0: {}, 1: {}}
        self.accesses: dict[int, list[Access]] = {}
        self.words: dict[int, list[Published]] = {}
        self.first_race: int | None = None
        self.first_certain: int | None = None
        self.number = 0

    def launch(self, launch: int, rank: int) -> None:
        self.ranks[launch] = rank
        for block in BLOCKS:
            for thread in THREADS:
                state = State(clock=dict(self.ended[rank]))
                state.clock[launch, block, thread] = 1
                state.fenced = {scope: dict(self.ended[rank]) for scope in SCOPES}
                self.states[launch, block, thread] = state

    def finish(self, launch: int) -> None:
        for thread in [thread for thread in self.states if thread[0] == launch]:
            state = self.states.pop(thread)
            ended = self.ended[self.ranks[launch]]
            join(ended, state.clock)
            for read in state.read.values():
                join(ended, read)

    def distance(self, a: Thread, b: Thread) -> str:
        if a[:2] == b[:2]:
            return "cta"
        return "gpu" if self.ranks[a[0]] == self.ranks[b[0]] else "sys"

    def tick(self, thread: Thread) -> None:
        self.states[thread].clock[thread] += 1

    def meet(self, threads: list[Thread]) -> None:
        """A barrier."""
        together: Clock = {}
        before: dict[str, Clock] = {scope: {} for scope in SCOPES}
        observed: dict[str, Clock] = {scope: {} for scope in SCOPES}
        for thread in threads:
            state = self.states[thread]
            join(together, state.clock)
            for scope in SCOPES:
                join(before[scope], state.before.get(scope, {}))
                join(before[scope], state.sequential.get(scope, {}))
                join(observed[scope], state.observed.get(scope, {}))
        for thread in threads:
            state = self.states[thread]
            state.clock = dict(together)
            state.sequential = {}
            state.before = {scope: dict(clock) for scope, clock in before.items()}
            state.observed = {scope: dict(clock) for scope, clock in observed.items()}
            self.tick(thread)

    def fence(self, thread: Thread, order: str, scope: str) -> None:
        state = self.states[thread]
        for each in SCOPES[: SCOPES.index(scope) + 1]:
            join(state.clock, state.read.pop(each, {}))
            join(state.before.setdefault("sys", {}), state.led_read.pop(each, {}))
        if order == "sc":
            for each in SCOPES[: SCOPES.index(scope) + 1]:
                join(state.clock, state.observed.pop(each, {}))
            for each in SCOPES[: SCOPES.index(scope) + 1]:
                state.sequential[each] = dict(state.clock)
        for each in SCOPES[: SCOPES.index(scope) + 1]:
            state.fenced[each] = dict(state.clock)
            state.led_fenced[each] = state.led()
        self.tick(thread)

    def happened_before(self, thread: Thread, access: Access) -> bool:
        return self.states[thread].clock.get(access.thread, 0) >= access.time

    def morally_strong(self, a: Access, b: Access) -> bool:
        if a.scope is None or b.scope is None:
            return False
        needed = SCOPES.index(self.distance(a.thread, b.thread))
        return SCOPES.index(a.scope) >= needed and SCOPES.index(b.scope) >= needed

    def access(
        self, thread: Thread, word: int, reads: bool, writes: bool, order: str | None, scope: str | None
    ) -> None:
        """An access; `order` is None of a plain one."""
        self.number += 1
        state = self.states[thread]
        if reads and order is not None:
            self._load(thread, word, order, str(scope))
        access = Access(thread, state.clock[thread], writes, order is not None, scope, self.number)
        past = self.accesses.setdefault(word, [])
        last = max((earlier.number for earlier in past if earlier.writes and earlier.strong), default=0)
        for earlier in past:
            if not (earlier.writes or writes) or self._is_ordered(thread, earlier, access, past):
                continue
            self.first_race = self.first_race or self.number
            # A strong store may take the place of what came before it in the detector's memory.
            if earlier.number >= last:
                self.first_certain = self.first_certain or self.number
        past.append(access)
        if writes:
            self._store(thread, word, reads, order, scope)

    def _is_ordered(self, thread: Thread, earlier: Access, access: Access, past: list[Access]) -> bool:
        if self.happened_before(thread, earlier) or self.morally_strong(earlier, access):
            return True
        if not (earlier.writes and earlier.strong):
            return False
        # A strong load has observed it, directly or through atomics, and happens before.
        return any(
            seen.number > earlier.number and self.morally_strong(earlier, seen) and self.happened_before(thread, seen)
            for seen in past
            if seen.strong
        )

    def _load(self, thread: Thread, word: int, order: str, scope: str) -> None:
        state = self.states[thread]
        for published in self.words.get(word, []):
            needed = self.distance(thread, published.thread)
            index = SCOPES.index(needed)
            if SCOPES.index(published.scope) < index or SCOPES.index(scope) < index:
                continue
            part = published.full if published.is_release else published.fenced[needed]
            led = published.led if published.is_release else published.led_fenced.get(needed, {})
            if order in ("acquire", "acq_rel"):
                join(state.clock, part)
                join(state.before.setdefault("sys", {}), led)
            else:
                join(state.read.setdefault(needed, {}), part)
                join(state.led_read.setdefault(needed, {}), led)
            join(state.observed.setdefault(needed, {}), published.sequential.get(needed, {}))

    def _store(self, thread: Thread, word: int, is_atomic: bool, order: str | None, scope: str | None) -> None:
        state = self.states[thread]
        if order is None:
            self.words.pop(word, None)
            return
        is_release = order in ("release", "acq_rel")
        led = state.led(), dict(state.led_fenced)
        published = Published(thread, is_release, str(scope), dict(state.clock), dict(state.fenced), {}, *led)
        for each in SCOPES:
            join(published.sequential.setdefault(each, {}), state.before.get(each, {}))
            join(published.sequential[each], state.sequential.get(each, {}))
        kept = self.words.get(word, [])
        if not is_atomic:
            kept = [] if is_release else [old for old in kept if old.thread == thread and old.is_release]
        self.words[word] = [*kept, published]
        if is_release:
            self.tick(thread)


def random_trace(seed: int, events: int = 40) -> tuple[str, int | None, int | None]:
    """A trace, whose accesses have the lines 1, 2, 3 ..., and the lines of the first that races and of the first that
    must be found."""
    draw = random.Random(seed)
    oracle = Oracle()
    lines = []
    running = {}
    for rank in (0, 1):
        running[rank] = rank + 1
        lines.append(f"launch {rank + 1} {rank} {10 * (rank + 1)} {len(BLOCKS)} {BLOCK_THREADS}")
        oracle.launch(rank + 1, rank)
    for _ in range(events):
        rank, block, thread = draw.randrange(2), draw.choice(BLOCKS), draw.choice(THREADS)
        who = (running[rank], block, thread)
        name = f"{who[0]} {block} {thread}"
        kind = draw.choices(("plain", "strong", "fence", "barrier", "warp", "kernel"), (6, 8, 3, 3, 1, 1))[0]
        scope = draw.choices(SCOPES, (1, 2, 4))[0]
        if kind == "plain":
            word, verb = draw.choice((*DATA, *DATA, *WORDS)), draw.choice(("ld", "st"))
            oracle.access(who, word, verb == "ld", verb == "st", None, None)
            lines.append(f"{name} {verb}.u64 {word:#x} :{oracle.number}")
        elif kind == "strong":
            word = draw.choice(WORDS)
            verb = draw.choice(("ld", "st", "atom"))
            orders = {"ld": ("relaxed", "acquire"), "st": ("relaxed", "release")}.get(verb, ("relaxed", "acq_rel"))
            order = draw.choice(orders)
            oracle.access(who, word, verb != "st", verb != "ld", order, scope)
            lines.append(f"{name} {verb}.{order}.{scope}.u64 {word:#x} :{oracle.number}")
        elif kind == "fence":
            order = draw.choice(("acq_rel", "sc"))
            oracle.fence(who, order, scope)
            lines.append(f"{name} fence.{order}.{scope} :900")
        elif kind == "barrier":
            oracle.meet([(who[0], block, each) for each in THREADS])
            lines.append(f"{who[0]} {block} * bar.sync 0 :901")
        elif kind == "warp":
            oracle.meet([(who[0], block, each) for each in THREADS if each < 32])
            lines.append(f"{who[0]} {block} 0-31 bar.warp.sync :902")
        else:
            oracle.finish(who[0])
            lines.append(f"finish {who[0]}")
            running[rank] = max(running.values()) + 1
            oracle.launch(running[rank], rank)
            lines.append(f"launch {running[rank]} {rank} {10 * (rank + 1)} {len(BLOCKS)} {BLOCK_THREADS}")
    return "\n".join(lines) + "\n", oracle.first_race, oracle.first_certain
