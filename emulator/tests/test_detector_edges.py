"""Each rule of the memory model both ways: with the edge nothing is found, without it the race and the edge's name."""

from __future__ import annotations

import pytest

from emulator.tests.traces import DetectorLibrary

TWO_KERNELS = """
launch 1 0 10 2 64
launch 2 1 20 2 64
"""
"""Launch 1 on rank 0, launch 2 on rank 1: two blocks of two warps each."""


def flag(
    store: str = "st.release.sys.u64",
    load: str = "ld.acquire.sys.u64",
    before: str = "",
    after: str = "",
    reader: str = "2 0 0",
) -> str:
    """Rank 0 writes data and then a flag; `reader` (launch, block, thread) reads the flag and then the data."""
    return (
        TWO_KERNELS
        + f"""
1 0 0 st.u32 0x202000 :1
{before and f"1 0 0 {before} :2"}
1 0 0 {store} 0x204000 :3
{reader} {load} 0x204000 :4
{after and f"{reader} {after} :5"}
{reader} ld.u32 0x202000 :6
"""
    )


def fences_of_others(
    before: str = "1 0 * fence.sc.sys :2",
    after: str = "2 0 * fence.sc.sys :6",
    first: str = "1 0 * bar.sync 0 :3",
    second: str = "2 0 * bar.sync 0 :5",
    store: str = "st.relaxed.sys.u64",
    load: str = "ld.relaxed.sys.u64",
) -> str:
    """All threads of a block write data; thread 0 then stores a flag, which thread 0 of another rank loads."""
    return f"""{TWO_KERNELS}
1 0 * st.u32 0x202000+4 :1
{before}
{first}
1 0 0 {store} 0x204000 :4
2 0 0 {load} 0x204000 :4
{second}
{after}
2 0 40 ld.u32 0x202080 :7
"""


def fence_beyond_a_flag(
    fence: str = "fence.sc.sys", after: str = "fence.sc.sys", flag: str = "st.release.gpu.u64", middle: str = ""
) -> str:
    """A thread writes data and tells another block, which sets a flag for another rank, as behind a grid's barrier."""
    return f"""{TWO_KERNELS}
1 0 0 st.u32 0x202000 :1
1 0 0 {fence} :2
1 0 0 {flag} 0x104000 :3
1 1 0 ld.acquire.gpu.u64 0x104000 :4
{middle}
1 1 0 st.relaxed.sys.u64 0x204000 :5
2 0 0 ld.relaxed.sys.u64 0x204000 :6
2 0 0 {after} :7
2 0 0 ld.u32 0x202000 :8
"""


def block(middle: str, second: str = "1 0 32 ld.shared.u32 0x900000 :9") -> str:
    """A store to shared memory by thread 0, something, and a load by thread 32."""
    return f"{TWO_KERNELS}\n1 0 0 st.shared.u32 0x900000 :1\n{middle}\n{second}\n"


ORDERED = {
    "release and acquire": flag(),
    "acq_rel atomics": flag("atom.acq_rel.sys.u64", "atom.acq_rel.sys.u64"),
    "fence, relaxed store": flag("st.relaxed.sys.u64", before="fence.acq_rel.sys"),
    "fence, volatile store": flag("st.volatile.u64", before="fence.sc.sys"),
    "relaxed load, fence": flag(load="ld.relaxed.sys.u64", after="fence.acq_rel.sys"),
    "volatile load, fence": flag(load="ld.volatile.u64", after="fence.sc.sys"),
    "gpu scope in one gpu": flag("st.release.gpu.u64", "ld.acquire.gpu.u64", reader="1 1 0"),
    "cta scope in one block": flag("st.release.cta.u64", "ld.acquire.cta.u64", reader="1 0 32"),
    "fence of gpu scope in one gpu": flag(
        "st.relaxed.gpu.u64", "ld.acquire.gpu.u64", "fence.acq_rel.gpu", reader="1 1 5"
    ),
    "release led on by an atomic": flag().replace(
        "2 0 0 ld.acquire", "2 1 0 atom.relaxed.sys.u64 0x204000 :30\n2 0 0 ld.acquire"
    ),
    "release, then relaxed by the same thread": flag().replace(
        "2 0 0 ld.acquire", "1 0 0 st.relaxed.sys.u64 0x204000 :30\n2 0 0 ld.acquire"
    ),
    "through a third thread": flag().replace(
        "2 0 0 ld.u32", "2 0 0 st.release.gpu.u64 0x204008 :7\n2 1 3 ld.acquire.gpu.u64 0x204008 :8\n2 1 3 ld.u32"
    ),
    "barrier, release by another thread": TWO_KERNELS
    + """
1 0 * st.u32 0x202000+4 :1
1 0 * bar.sync 0 :2
1 0 0 st.release.sys.u64 0x204000 :3
2 0 0 ld.acquire.sys.u64 0x204000 :4
2 0 * bar.sync 0 :5
2 0 * ld.u32 0x202000+4 :6
""",
    "fences of all threads, barrier, relaxed atomic": TWO_KERNELS
    + """
1 0 * st.u32 0x202000+4 :1
1 0 * fence.acq_rel.sys :2
1 0 * bar.sync 0 :2
1 0 0 fence.acq_rel.sys :2
1 0 0 atom.relaxed.sys.u64 0x204000 :3
2 0 0 ld.relaxed.sys.u64 0x204000 :4
2 0 0 fence.acq_rel.sys :5
2 0 0 ld.u32 0x202000 :6
""",
    "fence.sc of all threads before a barrier and after one": fences_of_others(),
    "fence.sc of the thread that stores, and after a barrier": fences_of_others(
        "1 0 * bar.sync 0 :2", first="1 0 0 fence.sc.sys :3"
    ),
    "fence.sc of all threads, an acquire": fences_of_others(load="ld.acquire.sys.u64"),
    "fence.sc of all threads, led on by an atomic": fences_of_others().replace(
        "2 0 0 ld.relaxed", "2 1 0 atom.relaxed.sys.u64 0x204000 :30\n2 0 0 ld.relaxed"
    ),
    "fence.sc beyond a flag": fence_beyond_a_flag(),
    "fence.sc beyond a flag that a fence precedes": fence_beyond_a_flag(
        flag="fence.acq_rel.gpu :9\n1 0 0 st.relaxed.gpu.u64"
    ),
    "fence.sc beyond a flag that a fence follows": fence_beyond_a_flag().replace(
        "ld.acquire.gpu.u64 0x104000 :4", "ld.relaxed.gpu.u64 0x104000 :4\n1 1 0 fence.acq_rel.gpu :9"
    ),
    "fence.sc beyond a flag and a barrier": fence_beyond_a_flag(middle="1 1 * bar.sync 0 :9").replace(
        "1 1 0 st.relaxed", "1 1 32 st.relaxed"
    ),
    "block barrier": block("1 0 * bar.sync 0 :2"),
    "named barrier of two warps": block("1 0 * bar.sync 3 :2"),
    "arrive and sync": block("1 0 0-31 bar.arrive 1 :2\n1 0 32-63 bar.sync 1 :3"),
    "warp barrier": block("1 0 0-31 bar.warp.sync :2", "1 0 5 ld.shared.u32 0x900000 :9"),
    "same thread": block("", "1 0 0 ld.shared.u32 0x900000 :9"),
    "mbarrier": block(
        """
1 0 0 mbarrier.init 0x900100 2 :3
1 0 * bar.sync 0 :4
1 0 0 st.shared.u32 0x900000 :5
1 0 0 mbarrier.arrive 0x900100 0 :6
mbarrier.complete 0x900100 0
1 0 32 mbarrier.wait 0x900100 0 :7
"""
    ),
    "two morally strong accesses": TWO_KERNELS
    + "1 0 0 st.relaxed.sys.u64 0x204000 :1\n2 0 0 atom.relaxed.sys.u64 0x204000 :2\n"
    + "2 1 0 ld.volatile.u64 0x204000 :3\n",
    "strong store of a small scope after a load that observed the other": TWO_KERNELS
    + "1 0 0 st.release.sys.u64 0x204000 :1\n2 0 0 ld.relaxed.sys.u64 0x204000 :2\n"
    + "2 0 0 st.relaxed.gpu.u64 0x204000 :3\n",
    "plain loads after a load that observed the store": TWO_KERNELS
    + "1 0 0 st.relaxed.sys.u64 0x204000 :1\n2 0 0 ld.relaxed.sys.u64 0x204000 :2\n"
    + "2 0 0 ld.u64 0x204000 :3\n2 0 0 ld.u64 0x204000 :4\n",
    "data that carries its own flag": TWO_KERNELS
    + "1 0 0 st.relaxed.sys.v2.u64 0x202000 :1\n2 0 0 ld.relaxed.sys.v2.u64 0x202000 :2\n",
    "reset by who has seen the last atomic": TWO_KERNELS
    + """
1 0 0 atom.relaxed.gpu.u32 0x104000 :1
1 1 0 atom.relaxed.gpu.u32 0x104000 :1
1 1 0 st.u32 0x104000 :2
""",
    "kernel after kernel": "launch 1 0 10 2 64\n1 0 0 st.u32 0x102000 :1\nfinish 1\nlaunch 2 0 10 2 64\n"
    "2 1 9 ld.u32 0x102000 :2\n",
    "event between streams": "launch 1 0 10 1 32\n1 0 0 st.u32 0x102000 :1\nfinish 1\nrecord 0 10 7 1\nawait 0 11 7 1\n"
    "launch 2 0 11 1 32\n2 0 0 ld.u32 0x102000 :2\n",
    "stream, host, stream": "launch 1 0 10 1 32\n1 0 0 st.u32 0x102000 :1\nfinish 1\nsync 0 10\n"
    "launch 2 0 11 1 32\n2 0 0 ld.u32 0x102000 :2\n",
    "copy after kernel": "launch 1 0 10 1 32\n1 0 0 st.u32 0x102000 :1\nfinish 1\ncopy 0 10 0x202000 0x102000 4\n",
    "relaxed load, end of the kernel": "launch 1 0 10 1 32\nlaunch 2 1 20 1 32\n1 0 0 st.u32 0x202000 :1\n"
    "1 0 0 st.release.sys.u64 0x204000 :2\n2 0 0 ld.relaxed.sys.u64 0x204000 :3\nfinish 2\nlaunch 3 1 20 1 32\n"
    "3 0 0 ld.u32 0x202000 :4\n",
    "relaxed flag of what came before the kernel": "arrive 0 10 1\nlaunch 1 0 10 1 32\nlaunch 2 1 20 1 32\n"
    "1 0 0 st.relaxed.sys.u64 0x204000 :1\n2 0 0 ld.acquire.sys.u64 0x204000 :2\n2 0 0 ld.u32 0x100000 :3\n",
}

MISSING = {
    "load of a small scope, after a load before the store": (
        TWO_KERNELS
        + "2 0 0 ld.relaxed.sys.u64 0x204000 :1\n1 0 0 st.relaxed.sys.u64 0x204000 :2\n"
        + "2 0 0 ld.relaxed.gpu.u64 0x204000 :3\n",
        "scope",
        (2, 3),
    ),
    "no flag": (f"{TWO_KERNELS}1 0 0 st.u32 0x202000 :1\n2 0 0 ld.u32 0x202000 :2\n", "no_synchronisation", (1, 2)),
    "store of gpu scope": (flag("st.release.gpu.u64"), "scope", (1, 6)),
    "load of gpu scope": (flag(load="ld.acquire.gpu.u64"), "scope", (1, 6)),
    "cta scope in one gpu": (flag("st.release.cta.u64", "ld.acquire.gpu.u64", reader="1 1 0"), "scope", (1, 6)),
    "atomic of gpu scope": (flag("atom.acq_rel.gpu.u64"), "scope", (1, 6)),
    "relaxed store": (flag("st.relaxed.sys.u64"), "release", (1, 6)),
    "relaxed load": (flag(load="ld.relaxed.sys.u64"), "acquire", (1, 6)),
    "volatile load": (flag(load="ld.volatile.u64"), "acquire", (1, 6)),
    "fence of gpu scope": (flag("st.relaxed.sys.u64", before="fence.acq_rel.gpu"), "fence_scope", (1, 6)),
    "fence before the data": (
        flag("st.relaxed.sys.u64").replace("1 0 0 st.u32", "1 0 0 fence.acq_rel.sys :9\n1 0 0 st.u32"),
        "release",
        (1, 6),
    ),
    "fence of the reader before its load": (
        flag(load="ld.relaxed.sys.u64").replace("2 0 0 ld.relaxed", "2 0 0 fence.acq_rel.sys :9\n2 0 0 ld.relaxed"),
        "acquire",
        (1, 6),
    ),
    "fence of the writer alone": (
        flag("st.relaxed.sys.u64", "ld.relaxed.sys.u64", before="fence.acq_rel.sys"),
        "acquire",
        (1, 6),
    ),
    "acquire fence of gpu scope": (flag(load="ld.relaxed.sys.u64", after="fence.acq_rel.gpu"), "acquire", (1, 6)),
    "plain store of the flag": (flag("st.u64"), "weak_flag", (3, 4)),
    "plain load of the flag": (flag(load="ld.u64"), "weak_flag", (3, 4)),
    "a later relaxed store of another thread": (
        flag().replace("2 0 0 ld.acquire", "1 1 0 st.relaxed.sys.u64 0x204000 :30\n2 0 0 ld.acquire"),
        "no_synchronisation",
        (1, 6),
    ),
    "release before the data": (
        TWO_KERNELS
        + """
1 0 0 st.release.sys.u64 0x204000 :1
1 0 0 st.u32 0x202000 :2
2 0 0 ld.acquire.sys.u64 0x204000 :3
2 0 0 ld.u32 0x202000 :4
""",
        "no_synchronisation",
        (2, 4),
    ),
    "through a third thread of too small a scope": (
        flag().replace(
            "2 0 0 ld.u32", "2 0 0 st.release.cta.u64 0x204008 :7\n2 1 3 ld.acquire.gpu.u64 0x204008 :8\n2 1 3 ld.u32"
        ),
        "scope",
        (1, 6),
    ),
    "no barrier before the release": (
        TWO_KERNELS
        + """
1 0 * st.u32 0x202000+4 :1
1 0 0 st.release.sys.u64 0x204000 :3
2 0 0 ld.acquire.sys.u64 0x204000 :4
2 0 * bar.sync 0 :5
2 0 * ld.u32 0x202000+4 :6
""",
        "no_synchronisation",
        (1, 6),
    ),
    "fence.acq_rel beyond a flag": (fence_beyond_a_flag("fence.acq_rel.sys"), "release", (1, 8)),
    "fence.sc of gpu scope beyond a flag": (fence_beyond_a_flag("fence.sc.gpu"), "release", (1, 8)),
    "fence.sc beyond a flag, and fence.acq_rel of the reader": (
        fence_beyond_a_flag(after="fence.acq_rel.sys"),
        "release",
        (1, 8),
    ),
    "fence.acq_rel of all threads before a barrier": (
        fences_of_others("1 0 * fence.acq_rel.sys :2"),
        "release",
        (1, 7),
    ),
    "fence.acq_rel of all threads after a barrier": (
        fences_of_others(after="2 0 * fence.acq_rel.sys :6"),
        "release",
        (1, 7),
    ),
    "fence.sc before a barrier, acquire without one": (
        fences_of_others(load="ld.acquire.sys.u64", after=""),
        "release",
        (1, 7),
    ),
    "fence.sc of gpu scope before a barrier": (fences_of_others("1 0 * fence.sc.gpu :2"), "fence_scope", (1, 7)),
    "fence.sc of gpu scope after a barrier": (fences_of_others(after="2 0 * fence.sc.gpu :6"), "release", (1, 7)),
    "fence.sc of all threads without a barrier": (fences_of_others(first=""), "no_synchronisation", (1, 7)),
    "fence.sc after a barrier, release without one": (
        fences_of_others("1 0 * bar.sync 0 :2", first="", store="st.release.sys.u64"),
        "acquire",
        (1, 7),
    ),
    "fence.sc of another warp alone": (
        fences_of_others(before="1 0 0-31 fence.sc.sys :2"),
        "release",
        (1, 7),
    ),
    "no block barrier": (block(""), "block_barrier", (1, 9)),
    "barrier that the writer only precedes": (
        block("1 0 32-63 bar.arrive 1 :2\n1 0 0-31 bar.sync 1 :3"),
        "block_barrier",
        (1, 9),
    ),
    "a store of another value after one of the same": (
        block("1 0 0 st.shared.same.u32 0x900000 :2", "1 0 32 st.shared.u32 0x900000 :9"),
        "block_barrier",
        (2, 9),
    ),
    "no warp barrier": (block("", "1 0 5 ld.shared.u32 0x900000 :9"), "warp_barrier", (1, 9)),
    "warp barrier of other lanes": (
        block("1 0 4-31 bar.warp.sync :2", "1 0 5 ld.shared.u32 0x900000 :9"),
        "warp_barrier",
        (1, 9),
    ),
    "relaxed arrival at an mbarrier": (
        block(
            """
1 0 0 mbarrier.init 0x900100 2 :3
1 0 * bar.sync 0 :4
1 0 0 st.shared.u32 0x900000 :5
1 0 0 mbarrier.arrive.relaxed 0x900100 0 :6
mbarrier.complete 0x900100 0
1 0 32 mbarrier.wait 0x900100 0 :7
"""
        ),
        "release",
        (5, 9),
    ),
    "mbarrier used before all know of it": (
        block("1 0 0 mbarrier.init 0x900100 2 :3\n1 0 32 mbarrier.arrive 0x900100 0 :4", ""),
        "block_barrier",
        (3, 4),
    ),
    "counter set by another warp": (
        "launch 1 0 10 1 64\n1 0 0 st.shared.u32 0x900000 :1\n1 0 32 atom.shared.u32 0x900000 :2\n",
        "block_barrier",
        (1, 2),
    ),
    "counter set by another lane": (
        "launch 1 0 10 1 64\n1 0 5 atom.shared.u32 0x900000 :1\n1 0 0 st.shared.u32 0x900000 :2\n",
        "warp_barrier",
        (1, 2),
    ),
    "counter set by another block": (
        "launch 1 0 10 2 64\n1 0 0 st.u32 0x102000 :1\n1 1 0 atom.u32 0x102000 :2\n",
        "weak_flag",
        (1, 2),
    ),
    "words of two sizes": (
        f"{TWO_KERNELS}1 0 0 st.relaxed.sys.u64 0x202000 :1\n2 0 0 ld.relaxed.sys.u32 0x202000 :2\n",
        "mixed_size",
        (1, 2),
    ),
    "two streams": (
        "launch 1 0 10 1 32\n1 0 0 st.u32 0x102000 :1\nfinish 1\nlaunch 2 0 11 1 32\n2 0 0 ld.u32 0x102000 :2\n",
        "stream_order",
        (1, 2),
    ),
    "stale event": (
        "record 0 10 7 1\nlaunch 1 0 10 1 32\n1 0 0 st.u32 0x102000 :1\nfinish 1\nawait 0 11 7 1\n"
        "launch 2 0 11 1 32\n2 0 0 ld.u32 0x102000 :2\n",
        "stream_order",
        (1, 2),
    ),
    "ld.global.nc of what its kernel wrote": (
        f"{TWO_KERNELS}1 0 0 st.u32 0x102000 :1\n1 0 * bar.sync 0 :2\n1 0 32 ld.global.nc.u32 0x102000 :3\n",
        "non_coherent",
        (1, 3),
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_accesses_are_no_race(detector: DetectorLibrary, name: str) -> None:
    assert detector.findings(ORDERED[name]) == []


@pytest.mark.parametrize("name", MISSING)
def test_a_race_is_found_with_its_lines_and_the_missing_edge(detector: DetectorLibrary, name: str) -> None:
    trace, missing, lines = MISSING[name]
    findings = detector.findings(trace)
    pairs = {(found["first"]["line"], found["second"]["line"]): found for found in findings}
    assert lines in pairs, [found["message"] for found in findings]
    assert pairs[lines]["kind"] == "race"
    assert pairs[lines]["missing"] == missing, pairs[lines]["message"]
