"""Litmus programs by tables: shapes, ways of synchronising, scopes, and places of the threads."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache

from emulator.tests.litmus.program import SCOPES, Instruction, Place, Program

PLACES: dict[str, tuple[Place, ...]] = {
    "warp": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)),
    "block": ((0, 0, 0), (0, 0, 32), (0, 0, 64), (0, 0, 96)),
    "cluster": ((0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)),
    "gpu": ((0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)),
    "ranks": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
}
"""Places of up to four threads; blocks of "cluster" form one."""
MIXED: dict[str, tuple[Place, ...]] = {
    "near_far": ((0, 0, 0), (0, 0, 32), (1, 0, 0), (1, 0, 32)),
    "far_near": ((0, 0, 0), (1, 0, 0), (1, 0, 32), (1, 1, 0)),
}
"""Places of three or four threads, some of which share a block."""

FLAGS: dict[str, tuple[str, str, str, str]] = {
    "plain": ("", "st y 1", "ld y", ""),
    "volatile": ("", "st.volatile y 1", "ld.volatile y", ""),
    "volatile_load": ("", "st y 1", "ld.volatile y", ""),
    "relaxed": ("", "st.relaxed.S y 1", "ld.relaxed.S y", ""),
    "release": ("", "st.release.S y 1", "ld.acquire.S y", ""),
    "release_only": ("", "st.release.S y 1", "ld.relaxed.S y", ""),
    "acquire_only": ("", "st.relaxed.S y 1", "ld.acquire.S y", ""),
    "fences": ("fence.acq_rel.S", "st.relaxed.S y 1", "ld.relaxed.S y", "fence.acq_rel.S"),
    "sc_fences": ("fence.sc.S", "st.relaxed.sys y 1", "ld.relaxed.sys y", "fence.sc.S"),
    "threadfence": ("fence.sc.S", "st.volatile y 1", "ld.volatile y", "fence.sc.S"),
    "plain_flag": ("fence.sc.S", "st y 1", "ld.volatile y", "fence.sc.S"),
    "release_fence": ("fence.acq_rel.S", "st.relaxed.sys y 1", "ld.acquire.sys y", ""),
    "acquire_fence": ("", "st.release.sys y 1", "ld.relaxed.sys y", "fence.acq_rel.S"),
    "exchange": ("", "r3 = exch.release.S y 1", "add.acquire.S y 0", ""),
    "reduction": ("", "red.release.S y 1", "ld.acquire.S y", ""),
    "atomics": ("fence.sc.S", "r3 = add.relaxed.sys y 1", "add.relaxed.sys y 0", "fence.sc.S"),
    "acq_rel": ("", "r3 = add.acq_rel.S y 1", "add.acq_rel.S y 0", ""),
    "two_stores": ("st.release.S y 2", "st.relaxed.S y 1", "ld.acquire.S y", ""),
    "two_loads": ("", "st.release.S y 1", "ld.relaxed.S y", "r3 = ld.acquire.S y"),
    "reads_by_reduction": ("", "st.release.S y 1", "ld.relaxed.S y", "red.acquire.S y 0"),
}
"""What stands between data and flag, the flag's store, its load, and what stands between that and the data."""
FENCES = ("", "fence.acq_rel.S", "fence.sc.S")
ACCESSES: dict[str, tuple[str, str]] = {
    "plain": ("st", "ld"),
    "volatile": ("st.volatile", "ld.volatile"),
    "relaxed": ("st.relaxed.S", "ld.relaxed.S"),
    "release": ("st.release.S", "ld.acquire.S"),
}
"""Stores and loads of shapes without data of their own."""
Make = Callable[[], Iterator[tuple[str, tuple[str, ...]]]]


def thread(*parts: str) -> str:
    """The text of a thread, without what is empty."""
    return "; ".join(part for part in parts if part)


def load(register: str, text: str, how: str, value: int = 1) -> str:
    """A load or atomic whose value the rest of the thread needs: repeated until it comes, or tested once."""
    return f"{register} = {text} until {value}" if how == "until" else f"{register} = {text}; if {register} {value}"


HOW = ("until", "once")


def message_passing() -> Iterator[tuple[str, tuple[str, ...]]]:
    """MP: data behind a flag; S and its kin, where the one who sees the flag writes the data."""
    for (before, store, flag, after), how in itertools.product(FLAGS.values(), HOW):
        see = load("r0", flag, how)
        yield "MP", (thread("st x 1", before, store), thread(see, after, "r1 = ld x"))
        yield "S", (thread("st x 1", before, store), thread(see, after, "st x 2"))
        yield "WAR", (thread("r1 = ld x", before, store), thread(see, after, "st x 2"))
    for before, store, flag, after in FLAGS.values():  # the reader takes the data whatever the flag says
        yield "MP unguarded", (thread("st x 1", before, store), thread(f"r0 = {flag}", after, "r1 = ld x"))
        strong = thread("st.relaxed.S x 1", before, store), thread(f"r0 = {flag}", after, "r1 = ld.relaxed.S x")
        yield "MP strong", strong


def barriers() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Data on both sides of a barrier, on the wrong side, and a flag beyond a barrier."""
    for barrier in ("bar", "warp", "cluster"):
        yield "barrier", (f"st x 1; {barrier}", f"{barrier}; r0 = ld x")
        yield "barrier", (f"r0 = ld x; {barrier}", f"{barrier}; st x 1")
        yield "barrier", (f"st x 1; {barrier}; r0 = ld y", f"st y 1; {barrier}; r0 = ld x")
        yield "barrier", (f"{barrier}; st x 1", f"{barrier}; r0 = ld x")
        yield "barrier", (f"st x 1; {barrier}; st x 2", f"{barrier}; r0 = ld x")
        yield "barrier", (f"st x 1; {barrier}; {barrier}; st x 2", f"{barrier}; r0 = ld x; {barrier}")
    for before, store, flag, after in FLAGS.values():
        see = load("r0", flag, "until")
        yield "barrier and flag", ("st x 1; bar", thread("bar", before, store), thread(see, after, "r1 = ld x"))
        yield "barrier and flag", (thread("st x 1", before, store), thread(see, after, "bar"), "bar; r1 = ld x")
        yield (
            "barrier and flag",
            (thread("st x 1", before, "bar"), thread("bar", store), thread(see, after, "r1 = ld x")),
        )


def store_buffering() -> Iterator[tuple[str, tuple[str, ...]]]:
    """SB, and Dekker's mutual exclusion by it; RWC."""
    for (st, ld), fence in itertools.product(ACCESSES.values(), FENCES):
        one = thread(f"{st} x 1", fence, f"r0 = {ld} y")
        other = thread(f"{st} y 1", fence, f"r0 = {ld} x")
        yield "SB", (one, other)
        yield "Dekker", (f"{one}; if r0 0; st z 1", f"{other}; if r0 0; st z 2")
        yield (
            "RWC",
            (f"{st} x 1", thread(f"r0 = {ld} x", fence, f"r1 = {ld} y"), thread(f"{st} y 1", fence, f"r2 = {ld} x")),
        )


def load_buffering() -> Iterator[tuple[str, tuple[str, ...]]]:
    """LB, with and without dependencies."""
    for (st, ld), fence in itertools.product(ACCESSES.values(), FENCES):
        for value in ("1", "r0"):
            one = thread(f"r0 = {ld} x", fence, f"{st} y {value}")
            other = thread(f"r0 = {ld} y", fence, f"{st} x {value}")
            yield "LB", (one, other)
        one = thread(f"r0 = {ld} x; if r0 1", fence, "st z 1", f"{st} y 1")
        yield "LB", (one, thread(f"r0 = {ld} y; if r0 1", fence, "st z 2", f"{st} x 1"))


def writes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """R, 2+2W, Z6: shapes whose outcome the order of writes decides."""
    for (st, ld), fence in itertools.product(ACCESSES.values(), FENCES):
        yield "R", (thread(f"{st} x 1", fence, f"{st} y 1"), thread(f"{st} y 2", fence, f"r0 = {ld} x"))
        yield "2+2W", (thread(f"{st} x 1", fence, f"{st} y 2"), thread(f"{st} y 1", fence, f"{st} x 2"))
        ends = thread(f"{st} x 1", fence, f"{st} y 1"), thread(f"r0 = {ld} z", fence, f"r1 = {ld} x")
        yield "Z6", (ends[0], thread(f"{st} y 2", fence, f"{st} z 1"), ends[1])


def iriw() -> Iterator[tuple[str, tuple[str, ...]]]:
    """IRIW: two readers of two writers."""
    for (st, ld), fence in itertools.product(ACCESSES.values(), FENCES):
        readers = thread(f"r0 = {ld} x", fence, f"r1 = {ld} y"), thread(f"r2 = {ld} y", fence, f"r3 = {ld} x")
        yield "IRIW", (f"{st} x 1", f"{st} y 1", *readers)


def coherence() -> Iterator[tuple[str, tuple[str, ...]]]:
    """CoRR, CoWW, CoRW, CoWR: one location."""
    for (st, ld), (other_st, other_ld) in itertools.product(ACCESSES.values(), repeat=2):
        yield "CoRR", (f"{st} x 1", f"r0 = {ld} x; r1 = {other_ld} x")
        yield "CoWW", (f"{st} x 1; {other_st} x 2", f"r0 = {ld} x; r1 = {ld} x")
        yield "CoRW", (f"r0 = {ld} x; {st} x 1", f"{other_st} x 2")
        yield "CoWR", (f"{st} x 1; r0 = {ld} x", f"{other_st} x 2")
    for atomic in ("add.relaxed.S", "exch.relaxed.S", "add.acq_rel.S"):
        yield "CoAA", (f"r0 = {atomic} x 1", f"r0 = {atomic} x 2")
        yield "CoAA", (f"r0 = {atomic} x 1", "r0 = add.relaxed.sys x 2")
        for st, ld in ACCESSES.values():
            yield "CoAW", (f"r0 = {atomic} x 1", f"{st} x 4")
            yield "CoAR", (f"r0 = {atomic} x 1", f"r0 = {ld} x")
            yield "reset", (f"r0 = {atomic} x 1", f"r0 = {ld} x until 1; {st} x 4")


def causality() -> Iterator[tuple[str, tuple[str, ...]]]:
    """WRC and ISA2: data handed on by a second flag, or read by a second reader; counters between them."""
    for (before, store, flag, after), how in itertools.product(FLAGS.values(), HOW):
        see, next_store = load("r0", flag, how), store.replace(" y", " z")
        next_see = load("r0", flag.replace(" y", " z"), how)
        first = thread("st x 1", before, store)
        yield "ISA2", (first, thread(see, after, before, next_store), thread(next_see, after, "r1 = ld x"))
        yield "ISA2", (first, thread(see, before, next_store), thread(next_see, after.replace(" y", " z"), "r1 = ld x"))
        data = load("r0", "ld.relaxed.sys x", how)
        yield "WRC", ("st.relaxed.sys x 1", thread(data, before, store), thread(see, after, "r1 = ld x"))
    for (before, store, flag, after), atomic in itertools.product(
        FLAGS.values(), ("add.relaxed.sys", "add.acq_rel.S", "exch.relaxed.sys")
    ):
        operand, value = ("1", 2) if atomic.startswith("add") else ("2", 2)
        second = f"{load('r2', f'{atomic} y {operand}', 'once', 1)}"
        yield (
            "MP through an atomic",
            (
                thread("st x 1", before, store),
                second,
                thread(load("r0", flag, "once", value), after, "r1 = ld x"),
            ),
        )


def critical_sections() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Locks, and counters whose last one reads what the others have written."""
    ways = {
        ("", "cas.acquire.S", "", "st.release.S l 0"),
        ("", "cas.relaxed.S", "fence.acq_rel.S", "fence.acq_rel.S; st.relaxed.S l 0"),
        ("", "cas.relaxed.sys", "", "st.relaxed.sys l 0"),
        ("", "cas.acq_rel.S", "", "st.volatile l 0"),
        ("", "cas.relaxed.sys", "fence.sc.S", "fence.sc.S; r3 = exch.relaxed.sys l 0"),
        ("", "cas.acquire.S", "", "st l 0"),
    }
    for _, take, after, give in sorted(ways):
        body = thread(f"r0 = {take} l 0 1 until 0", after, "r1 = ld x")
        yield "lock", (f"{body}; st x 1; {give}", f"{body}; st x 2; {give}")
    for count, before, after in (
        ("add.relaxed.S", "", ""),
        ("add.acq_rel.S", "", ""),
        ("add.release.S", "", ""),
        ("add.relaxed.sys", "fence.acq_rel.S", "fence.acq_rel.S"),
        ("add.relaxed.sys", "fence.sc.S", ""),
        ("add.relaxed.sys", "fence.sc.S", "fence.sc.S"),
    ):
        threads = [
            thread(f"st {own} 1", before, f"r0 = {count} c 1; if r0 1", after, f"r1 = ld {other}")
            for own, other in (("x", "y"), ("y", "x"))
        ]
        yield "last one reads", (threads[0], threads[1])


def fences_by_order() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Two fence.sc whose order a read of an overwritten value decides, or barriers between fence and flag."""
    for fence in ("fence.sc.S", "fence.acq_rel.S"):
        yield (
            "fence order",
            (
                f"st x 1; {fence}; r0 = ld.relaxed.sys y; if r0 0; st.relaxed.sys z 1",
                f"st.relaxed.sys y 1; {fence}; r0 = ld.relaxed.sys z; if r0 1; r1 = ld x",
            ),
        )
        yield (
            "fence order",
            (
                f"st x 1; {fence}; st.relaxed.sys y 1",
                f"r0 = ld.relaxed.sys y until 1; {fence}; r1 = ld x",
                f"r0 = ld.relaxed.sys y until 1; {fence}; r1 = ld x",
            ),
        )
        yield (
            "fence order",
            (f"st x 1; {fence}; bar", "bar; st.relaxed.sys y 1", f"r0 = ld.relaxed.sys y until 1; {fence}; r1 = ld x"),
        )
        yield (
            "fence order",
            (f"st x 1; {fence}; st.relaxed.sys y 1", "r0 = ld.relaxed.sys y until 1; bar", f"bar; {fence}; r1 = ld x"),
        )


def async_proxy() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Bulk copies out of shared memory, of what ordinary stores have written there."""
    for proxy in ("", "proxy"):
        yield "proxy", (thread("st s 1", proxy, "bulk x s; done; r0 = ld x"),)
        yield "proxy", (thread("st s 1", proxy, "bulk x s; done.read; st s 2"),)
        yield "proxy", (thread("st s 1", proxy, "bulk x s; st s 2; done"),)
        yield "proxy", (thread("st s 1", proxy, "bulk x s; done.read; r0 = ld x"),)
        yield "proxy", (thread("st s 1", proxy, "bar"), "bar; bulk x s; done")
        yield "proxy", ("st s 1; bar", thread("bar", proxy, "bulk x s; done"))
        yield "proxy", (thread("st s 1; bar", proxy), "bar; bulk x s; done")
        yield "proxy", (thread("st s 1", proxy, "bulk x s; done.read; bar"), "bar; st s 2")
        yield "proxy", (thread("st s 1", proxy, "bulk x s; bar; done"), "bar; st s 2")
        yield "proxy", (thread("r0 = ld x", proxy, "bar"), "bar; bulk x s; done")
        yield "proxy", (thread("r0 = ld x; bar", proxy), thread("bar; bulk x s; done"))
        for before, store, flag, after in FLAGS.values():
            see = load("r0", flag, "until")
            yield "proxy", (thread("st s 1", proxy, before, store), thread(see, after, "bulk x s; done"))
            yield "proxy", (thread("st s 1", before, store), thread(see, after, proxy, "bulk x s; done"))
            yield "proxy", (thread("r1 = ld x", proxy, before, store), thread(see, after, "bulk x s; done"))
            copied = thread("bulk x s; done", before, store), thread(see, after, "r1 = ld x")
            yield "proxy", copied
            yield "proxy", (thread("bulk x s; done.read", before, store), copied[1])


MAKERS: tuple[Make, ...] = (
    message_passing,
    barriers,
    store_buffering,
    load_buffering,
    writes,
    iriw,
    coherence,
    causality,
    critical_sections,
    fences_by_order,
    async_proxy,
)


GROUPS: dict[str, tuple[str, ...]] = {
    "message passing (MP, S, write after read)": ("MP", "S", "WAR", "MP unguarded", "MP strong"),
    "causality (WRC, ISA2, through atomics)": ("WRC", "ISA2", "MP through an atomic"),
    "coherence (CoRR, CoWW, CoRW, CoWR, atomics)": ("CoRR", "CoWW", "CoRW", "CoWR", "CoAA", "CoAW", "CoAR", "reset"),
    "store buffering (SB, RWC, Dekker)": ("SB", "RWC", "Dekker"),
    "load buffering (LB)": ("LB",),
    "orders of writes (R, 2+2W, Z6)": ("R", "2+2W", "Z6"),
    "two readers of two writers (IRIW)": ("IRIW",),
    "locks, last one reads": ("lock", "last one reads"),
    "barriers of warp, block, cluster": ("barrier", "barrier and flag"),
    "orders of fence.sc": ("fence order",),
    "bulk copies and proxy fences": ("proxy",),
}
"""Families that form a row of the README's table."""


def placed(family: str, threads: tuple[str, ...]) -> Iterator[Program]:
    """A shape at all scopes and places where its threads can stand."""
    places = PLACES if len(threads) < 3 else PLACES | MIXED
    for scope in SCOPES if any(".S" in text for text in threads) else ("sys",):
        texts = [text.replace(".S", f".{scope}") for text in threads]
        for name, at in places.items():
            program = Program.of(family, texts, at, in_cluster=name == "cluster")
            if is_possible(program):
                yield program


def is_possible(program: Program) -> bool:
    """Whether all threads that wait at a barrier meet there, and shared memory is that of one block."""
    blocks = {place[:2] for place in program.places}
    warps = {(*place[:2], place[2] // 32) for place in program.places}
    if any(name.startswith("s") for name in program.locations) and len(blocks) > 1:
        return False
    for verb, is_one in (("warp", len(warps) == 1), ("cluster", program.in_cluster)):
        counts = {sum(each.verb == verb for each in thread) for thread in program.threads}
        if counts != {0} and (len(counts) > 1 or not is_one):
            return False
    with_bar = {place[:2] for place, body in zip(program.places, program.threads, strict=True) if _bars(body)}
    inside = [_bars(body) for place, body in zip(program.places, program.threads, strict=True) if place[:2] in with_bar]
    return len(with_bar) <= 1 and len(set(inside)) <= 1 and (not inside or len(inside) > 1)


def _bars(body: tuple[Instruction, ...]) -> int:
    return sum(each.verb == "bar" for each in body)


def programs(per_family: int | None = None) -> list[Program]:
    """Programs, each once.

    Args:
        per_family: Number of programs of each family at most, some of all scopes and places; None for all.
    """
    found = _by_key()
    by_family: dict[str, list[str]] = {}
    for key in sorted(found, key=lambda key: hashlib.sha256(key.encode()).digest()):
        by_family.setdefault(found[key].family, []).append(key)
    return [found[key] for family in sorted(by_family) for key in by_family[family][:per_family]]


@cache
def _by_key() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for make in MAKERS:
        for family, threads in make():
            for program in placed(family, threads):
                found.setdefault(program.key, program)
    return found
