"""Classes of races: unsynchronised, weak order, benign; stores of equal values; reads before asynchronous writes."""

from __future__ import annotations

import pytest

from emulator.tests.traces import DetectorLibrary

ONE = "launch 1 0 10 2 64\n"
"""Two blocks of two warps."""
TWO_RANKS = f"{ONE}launch 2 1 20 2 64\n"


def classes(detector: DetectorLibrary, trace: str) -> dict[tuple[int, int], tuple[str, str]]:
    """Lines of both accesses -> class and the edge that is missing."""
    return {
        (found["first"]["line"], found["second"]["line"]): (found["class"], found["missing"])
        for found in detector.findings(trace)
    }


EQUAL = ("benign", "equal_stores")

HARMLESS = {
    "each warp fills a word and reads it": """
1 0 0 st.shared.u32 0x900000 :1
1 0 0-31 bar.warp.sync :2
1 0 0-31 ld.shared.u32 0x900000 :3
1 0 32 st.shared.same.u32 0x900000 :1
1 0 32-63 bar.warp.sync :2
1 0 32-63 ld.shared.u32 0x900000 :3
""",
    "the second warp fills it before the first has read it": """
1 0 0 st.shared.u32 0x900000 :1
1 0 32 st.shared.same.u32 0x900000 :1
1 0 0-31 bar.warp.sync :2
1 0 0-31 ld.shared.u32 0x900000 :3
1 0 32-63 bar.warp.sync :2
1 0 32-63 ld.shared.u32 0x900000 :3
""",
    "each thread reads its own store": """
1 0 0 st.shared.u32 0x900000 :1
1 0 1-31 st.shared.same.u32 0x900000 :1
1 0 32-63 st.shared.same.u32 0x900000 :1
1 0 0-31 ld.shared.u32 0x900000 :3
""",
    "all threads set a word, which all read after a barrier": """
1 0 0 st.shared.u32 0x900000 :1
1 0 1-31 st.shared.same.u32 0x900000 :1
1 0 32-63 st.shared.same.u32 0x900000 :1
1 0 * bar.sync 0 :2
1 0 * ld.shared.u32 0x900000 :3
""",
    "a word set by all, then by one after a barrier": """
1 0 0 st.shared.u32 0x900000 :1
1 0 1-31 st.shared.same.u32 0x900000 :1
1 0 32-63 st.shared.same.u32 0x900000 :1
1 0 * bar.sync 0 :2
1 0 40 st.shared.u32 0x900000 :3
""",
    "each block fills a table in global memory and reads it after a barrier": """
1 0 0 st.u32 0x102000 :1
1 0 1-31 st.same.u32 0x102000 :1
1 1 0-31 st.same.u32 0x102000 :1
1 0 * bar.sync 0 :2
1 0 * ld.u32 0x102000 :3
1 1 * bar.sync 0 :2
1 1 * ld.u32 0x102000 :3
""",
    "a table of words that is read by vectors": """
1 0 0-3 st.shared.u32 0x900000+4 :1
1 0 32-35 st.shared.same.u32 0x900000+4 :1
1 0 0-31 bar.warp.sync :2
1 0 0 ld.shared.v4.u32 0x900000 :3
""",
    "a table of vectors that is read by words": """
1 0 0 st.shared.v4.u32 0x900000 :1
1 0 32 st.shared.same.v4.u32 0x900000 :1
1 0 0-31 bar.warp.sync :2
1 0 0-3 ld.shared.u32 0x900000+4 :3
""",
}
"""Stores of one value by threads that nothing orders, beside stores of the reader's own block."""

HIDDEN = {
    "a store of the value that is there, and a reader without one": (
        """
1 0 * st.shared.u32 0x900000+4 :1
1 0 * bar.sync 0 :2
1 0 32 st.shared.same.u32 0x900080 :3
1 0 0 ld.shared.u32 0x900080 :4
""",
        (3, 4),
        "block_barrier",
    ),
    "the same where the reader comes first": (
        """
1 0 * st.shared.u32 0x900000+4 :1
1 0 * bar.sync 0 :2
1 0 0 ld.shared.u32 0x900080 :4
1 0 32 st.shared.same.u32 0x900080 :3
""",
        (4, 3),
        "block_barrier",
    ),
    "the same where the reader has stored the value before the barrier": (
        """
1 0 0 st.shared.u32 0x900080 :1
1 0 * bar.sync 0 :2
1 0 32 st.shared.same.u32 0x900080 :3
1 0 0 ld.shared.u32 0x900080 :4
""",
        (3, 4),
        "block_barrier",
    ),
    "the same, where it reads first": (
        """
1 0 0 st.shared.u32 0x900080 :1
1 0 * bar.sync 0 :2
1 0 0 ld.shared.u32 0x900080 :4
1 0 32 st.shared.same.u32 0x900080 :3
""",
        (4, 3),
        "block_barrier",
    ),
    "a store of another block's, of what an earlier kernel has stored": (
        "1 0 0 st.u32 0x102000 :1\nfinish 1\nlaunch 3 0 10 2 32\n3 0 0 st.same.u32 0x102000 :2\n"
        "3 1 0 ld.u32 0x102000 :3\n",
        (2, 3),
        "no_synchronisation",
    ),
    "a word set by all warps, and by one to another value": (
        """
1 0 0 st.shared.u32 0x900000 :1
1 0 1-31 st.shared.same.u32 0x900000 :1
1 0 32-63 st.shared.same.u32 0x900000 :1
1 0 40 st.shared.u32 0x900000 :2
""",
        (1, 2),
        "block_barrier",
    ),
    "a plain store of the value that a flag has": (
        "1 0 0 st.relaxed.gpu.u32 0x104000 :1\n1 1 0 st.same.u32 0x104000 :2\n",
        (1, 2),
        "weak_flag",
    ),
    "a reader of a third block, behind one of two equal stores": (
        """launch 3 0 11 1 32
1 0 0 st.u32 0x102000 :1
1 1 0 st.same.u32 0x102000 :2
1 1 0 st.release.gpu.u32 0x104000 :3
3 0 0 ld.acquire.gpu.u32 0x104000 :4
3 0 0 ld.u32 0x102000 :5
""",
        (1, 5),
        "stream_order",
    ),
}
"""Trace, lines of the race, and the edge that is missing."""


@pytest.mark.parametrize("name", HARMLESS)
def test_equal_stores_beside_the_reader_s_own_are_benign(detector: DetectorLibrary, name: str) -> None:
    found = classes(detector, ONE + HARMLESS[name])
    assert set(found.values()) == {EQUAL}, found


@pytest.mark.parametrize("name", HIDDEN)
def test_equal_values_hide_no_race(detector: DetectorLibrary, name: str) -> None:
    trace, lines, missing = HIDDEN[name]
    found = classes(detector, ONE + trace)
    assert found.get(lines) == ("unsynchronised", missing), found


def passed_on(before: str, store: str, load: str, after: str = "") -> str:
    """Data of rank 0, a flag with something before it, and rank 1, which loads both with something between."""
    return (
        f"{TWO_RANKS}1 0 0 st.u32 0x202000 :1\n{before}1 0 0 {store} 0x204000 :3\n"
        f"2 0 0 {load} 0x204000 :4\n{after}2 0 0 ld.u32 0x202000 :6\n"
    )


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (passed_on("", "st.volatile.u64", "ld.volatile.u64"), {(1, 6): "release"}),
        (passed_on("", "st.relaxed.sys.u64", "ld.acquire.sys.u64"), {(1, 6): "release"}),
        (passed_on("", "st.release.sys.u64", "ld.relaxed.sys.u64"), {(1, 6): "acquire"}),
        (passed_on("", "st.release.gpu.u64", "ld.acquire.sys.u64"), {(3, 4): "scope", (1, 6): "scope"}),
        (
            passed_on("1 0 0 fence.acq_rel.gpu :2\n", "st.relaxed.sys.u64", "ld.acquire.sys.u64"),
            {(1, 6): "fence_scope"},
        ),
        (passed_on("", "st.u64", "ld.volatile.u64"), {(3, 4): "weak_flag", (1, 6): "weak_flag"}),
        (
            passed_on("1 0 * bar.sync 0 :2\n", "st.u64", "ld.acquire.sys.u64"),
            {(3, 4): "weak_flag", (1, 6): "weak_flag"},
        ),
        (
            passed_on("", "st.volatile.u64", "ld.volatile.u64", "2 0 0 st.volatile.u64 0x204008 :5\n").replace(
                "2 0 0 ld.u32", "2 1 0 ld.volatile.u64 0x204008 :7\n2 1 0 ld.u32"
            ),
            {(1, 6): "release"},
        ),
    ],
    ids=["volatile", "relaxed store", "relaxed load", "scope", "fence", "plain store", "barrier", "two flags"],
)
def test_a_flag_without_the_order_that_ptx_asks_for_is_weak(
    detector: DetectorLibrary, trace: str, expected: dict[tuple[int, int], str]
) -> None:
    assert classes(detector, trace) == {lines: ("weak_order", missing) for lines, missing in expected.items()}


@pytest.mark.parametrize(
    "trace",
    [
        f"{TWO_RANKS}1 0 0 st.u32 0x202000 :1\n2 0 0 ld.u32 0x202000 :6\n",
        f"{TWO_RANKS}1 0 0 st.volatile.u64 0x204000 :3\n1 0 0 st.u32 0x202000 :1\n2 0 0 ld.volatile.u64 0x204000 :4\n"
        "2 0 0 ld.u32 0x202000 :6\n",
        passed_on("", "st.volatile.u64", "ld.volatile.u64").replace("2 0 0 ld.volatile", "2 0 1 ld.volatile"),
        passed_on("", "st.u64", "ld.volatile.data.u64"),
        f"{TWO_RANKS}1 0 0 st.u32 0x202000 :1\n2 0 0 ld.volatile.data.u32 0x202000 :6\n",
        f"{TWO_RANKS}1 0 0 atom.relaxed.gpu.u32 0x102000 :1\n1 1 0 ld.u32 0x102000 :6\n",
        f"{TWO_RANKS}1 0 0 atom.relaxed.gpu.u32 0x102000 :1\n1 1 0 st.u32 0x102000 :6\n",
    ],
    ids=[
        "no flag",
        "flag before the data",
        "flag of another thread",
        "load that decides no branch",
        "volatile load of the data",
        "plain load of a sum",
        "plain reset of a sum",
    ],
)
def test_where_no_flag_leads_it_is_unsynchronised(detector: DetectorLibrary, trace: str) -> None:
    found = classes(detector, trace)
    assert found[1, 6][0] == "unsynchronised", found


def test_one_of_the_lanes_that_have_loaded_a_value_together_updates_it(detector: DetectorLibrary) -> None:
    """They would have to part before the load. Another address of the same load is that of another lane's number."""
    update = f"{ONE}1 0 0-31 ld.u32 0x102000 :1\n1 0 0 st.u32 0x102000 :2\n"
    assert classes(detector, update) == {(1, 2): ("weak_order", "warp_barrier")}
    of_others = f"{ONE}1 0 1-31 ld.u32 0x102000 :1\n1 0 0 st.u32 0x102000 :2\n"
    assert classes(detector, of_others) == {(1, 2): ("unsynchronised", "warp_barrier")}


def test_a_pair_of_lines_that_is_unsynchronised_elsewhere_is_no_longer_weak(detector: DetectorLibrary) -> None:
    trace = passed_on("", "st.volatile.u64", "ld.volatile.u64") + "1 1 0 st.u32 0x202100 :1\n2 1 0 ld.u32 0x202100 :6\n"
    assert classes(detector, trace) == {(1, 6): ("unsynchronised", "no_synchronisation")}


def test_a_race_says_what_a_gpu_would_have_to_do(detector: DetectorLibrary) -> None:
    (found,) = detector.findings(passed_on("", "st.volatile.u64", "ld.volatile.u64"))
    assert found["message"].startswith("weak order on 4 bytes of rank 1's `scratch`")
    assert "its thread executes no fence of .sys scope after the data: use st.release.sys" in found["message"]
    assert "visible ahead of the first access" in found["exposure"]
    (beyond,) = detector.findings(f"{ONE}1 0 0 ld.u32 0x100400 :1\n")
    assert (beyond["kind"], beyond["class"], beyond["exposure"]) == ("out_of_bounds", None, None)


def test_only_a_fence_of_the_thread_that_stores_the_flag_counts_as_its_fence(detector: DetectorLibrary) -> None:
    """A fence before the data, of any scope, is no fence of too small a scope."""
    trace = passed_on("", "st.relaxed.sys.u64", "ld.acquire.sys.u64").replace(
        "1 0 0 st.u32", "1 0 0 fence.acq_rel.gpu :9\n1 0 0 st.u32"
    )
    assert classes(detector, trace) == {(1, 6): ("weak_order", "release")}


TILE = """launch 1 0 10 1 64
1 0 0 mbarrier.init 0x900100 1 :1
1 0 0 mbarrier.init 0x900108 1 :1
1 0 * bar.sync 0 :2
1 0 32 ld.shared.u32 0x900200 :3
{between}
1 0 0 cp.async.bulk.load 77 0x900100 0x900200 0x100000 64 :9
"""
BACK = "1 0 32 mbarrier.arrive 0x900108 0 :5\nmbarrier.complete 0x900108 0\n1 0 0 mbarrier.wait 0x900108 0 :6\n"


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("1 0 * fence.proxy.async.shared :4\n1 0 * bar.sync 0 :5", {}),
        ("1 0 * fence.proxy.async :4\n1 0 * bar.sync 0 :5", {}),
        ("1 0 * bar.sync 0 :4\n1 0 0 fence.proxy.async.shared :5", {}),
        (f"1 0 32 fence.proxy.async.shared :4\n{BACK}", {}),
        ("1 0 * bar.sync 0 :4", {(3, 9): ("unsynchronised", "proxy_fence")}),
        ("1 0 * fence.proxy.async.global :4\n1 0 * bar.sync 0 :5", {(3, 9): ("unsynchronised", "proxy_fence")}),
        (BACK, {(3, 9): ("weak_order", "proxy_fence")}),
        ("1 0 * fence.proxy.async.shared :4", {(3, 9): ("unsynchronised", "block_barrier")}),
    ],
    ids=[
        "shared fence and barrier",
        "fence and barrier",
        "barrier and fence of the issuer",
        "fence and mbarrier",
        "barrier alone",
        "fence of global memory",
        "mbarrier alone",
        "fence alone",
    ],
)
def test_a_tile_that_was_read_is_loaded_again(
    detector: DetectorLibrary, between: str, expected: dict[tuple[int, int], tuple[str, str]]
) -> None:
    assert classes(detector, TILE.format(between=between)) == expected


RESET = """
1 0 0 atom.relaxed.gpu.u32 0x104000 :1
1 1 0 atom.relaxed.gpu.u32 0x104000 :1
"""


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        ("1 0 0 ld.volatile.u32 0x104000 :2\n1 0 0 st.u32 0x104000 :3\n", None),
        (
            "1 0 0 ld.volatile.u32 0x104000 :2\n1 1 0 atom.relaxed.gpu.u32 0x104000 :1\n"
            "1 0 0 ld.volatile.u32 0x104000 :2\n1 0 0 st.u32 0x104000 :3\n",
            None,
        ),
        ("1 0 0 ld.relaxed.gpu.u32 0x104000 :2\n1 0 * bar.sync 0 :4\n1 0 40 st.u32 0x104000 :3\n", None),
        (
            "1 0 0 ld.volatile.u32 0x104000 :2\n1 1 0 atom.relaxed.gpu.u32 0x104000 :1\n1 0 0 st.u32 0x104000 :3\n",
            (1, 3),
        ),
        ("1 0 0 ld.relaxed.cta.u32 0x104000 :2\n1 0 0 st.u32 0x104000 :3\n", (1, 3)),
        ("1 0 0 ld.volatile.u32 0x104000 :2\n1 0 40 st.u32 0x104000 :3\n", (1, 3)),
    ],
    ids=[
        "volatile load",
        "polls",
        "load and barrier",
        "an atomic after the load",
        "scope of a block",
        "another thread",
    ],
)
def test_a_plain_reset_is_ordered_after_the_atomics_that_a_strong_load_has_seen(
    detector: DetectorLibrary, after: str, lines: tuple[int, int] | None
) -> None:
    found = classes(detector, ONE + RESET + after)
    assert (lines in found) if lines else not found, found
