"""Asynchronous copies, wgmma, proxies and clusters in traces of events."""

from __future__ import annotations

import pytest

from emulator.tests.traces import DetectorLibrary

START = "launch 1 0 10 1 64\n1 0 0 mbarrier.init 0x900100 1 :1\n1 0 * bar.sync 0 :2\n"

LOAD = """
1 0 0 mbarrier.expect 0x900100 0 64 :3
1 0 0 mbarrier.arrive 0x900100 0 :3
1 0 0 cp.async.bulk.load 77 0x900100 0x900200 0x100000 64 :4
complete 77 0x900100 0
mbarrier.complete 0x900100 0
1 0 32 mbarrier.wait 0x900100 0 :5
1 0 32 ld.shared.u32 0x900200 :6
"""

STORE = """
1 0 * st.shared.u32 0x900200+4 :3
1 0 * fence.proxy.async.shared :4
1 0 * bar.sync 0 :5
1 0 0 cp.async.bulk.store 78 0x101000 0x900200 64 :6
1 0 0 commit.bulk :7
1 0 0 wait.bulk.read 0 :8
1 0 0 st.shared.u32 0x900200 :9
"""

EARLY_READ = """
1 0 0 mbarrier.expect 0x900100 0 64 :3
1 0 0 mbarrier.arrive 0x900100 0 :3
1 0 0 cp.async.bulk.load.late 77 0x900100 0x900200 0x100000 64 :4
1 0 * bar.sync 0 :5
1 0 32 ld.shared.u32 0x900200 :6
complete 77 0x900100 0
mbarrier.complete 0x900100 0
1 0 32 mbarrier.wait 0x900100 0 :7
"""

WGMMA = """
1 0 * st.shared.u32 0x900200+4 :3
1 0 * fence.proxy.async.shared :4
1 0 * bar.sync 0 :5
1 0 0-31 wgmma.mma 79 0x900200 256 :6
1 0 0-31 commit.wgmma :7
1 0 0-31 wait.wgmma 0 :8
1 0 0-31 st.shared.u32 0x900200+4 :9
"""

COPIES = """
1 0 0 cp.async.plain 81 0x900200 0x100000 16 :3
1 0 0 cp.async.plain 82 0x900210 0x100010 16 :4
1 0 0 cp.async.arrive 0x900100 :5
mbarrier.complete 0x900100 0
1 0 32 mbarrier.wait 0x900100 0 :6
1 0 32 ld.shared.u32 0x900200 :7
1 0 32 ld.shared.u32 0x900210 :8
"""

PEER_LOAD = """
launch 2 1 20 1 32
2 0 0 st.u32 0x202000 :20
2 0 0 st.release.sys.u64 0x204000 :21
1 0 0 ld.acquire.sys.u64 0x204000 :22
1 0 0 fence.proxy.async.global :23
1 0 0 cp.async.bulk.load 80 0x900100 0x900200 0x202000 16 :24
"""

CLUSTER = """
launch 3 0 10 2 32 2
3 0 0 st.shared.u32 0x900400 :1
3 0 * barrier.cluster.arrive 0 :2
3 1 * barrier.cluster.arrive 0 :2
3 0 * barrier.cluster.wait 0 :3
3 1 * barrier.cluster.wait 0 :3
3 1 7 ld.shared.u32 0x900400 :4
"""

ARRIVE = "3 0 * barrier.cluster.arrive"
RELAXED = "3 0 * barrier.cluster.arrive.relaxed"
RELAXED_CLUSTER = CLUSTER.replace(ARRIVE, "3 0 0 fence.acq_rel.cluster :2\n" + RELAXED)

INIT = """
1 0 0 mbarrier.init 0x900140 1 :1
1 0 0-31 bar.warp.sync :2
1 0 0 mbarrier.arrive 0x900140 0 :3
mbarrier.complete 0x900140 0
1 0 0 mbarrier.wait 0x900140 0 :4
1 0 7 mbarrier.wait 0x900140 0 :5
"""

CLUSTER_INIT = """
launch 3 0 10 2 32 2
3 0 0 mbarrier.init 0x900140 1 :1
3 0 0 fence.mbarrier_init.release.cluster :2
3 0 * barrier.cluster.arrive.relaxed 0 :3
3 1 * barrier.cluster.arrive.relaxed 0 :3
3 0 * barrier.cluster.wait 0 :4
3 1 * barrier.cluster.wait 0 :4
3 1 7 mbarrier.arrive.relaxed 0x900140 0 :5
"""


@pytest.mark.parametrize("trace", [LOAD, STORE, WGMMA, COPIES, PEER_LOAD, CLUSTER, RELAXED_CLUSTER, INIT, CLUSTER_INIT])
def test_copies_that_are_waited_for_are_no_race(detector: DetectorLibrary, trace: str) -> None:
    assert detector.findings(START + trace) == []


def without(trace: str, *begins: str) -> str:
    """The trace without the lines that begin so."""
    return "\n".join(line for line in trace.splitlines() if not line.startswith(begins)) + "\n"


@pytest.mark.parametrize(
    ("trace", "missing", "lines"),
    [
        (without(LOAD, "1 0 32 mbarrier.wait"), "completion", (4, 6)),
        (EARLY_READ, "completion", (6, 4)),
        (EARLY_READ.replace("1 0 * bar.sync 0 :5\n", "").replace("1 0 32 ld", "1 0 0 ld"), "completion", (6, 4)),
        (without(STORE, "1 0 * fence.proxy"), "proxy_fence", (3, 6)),
        (without(STORE, "1 0 * bar.sync"), "warp_barrier", (3, 6)),
        (without(STORE, "1 0 0 wait.bulk"), "completion", (6, 9)),
        (STORE.replace("wait.bulk.read 0", "wait.bulk.read 1"), "completion", (6, 9)),
        (STORE + "1 0 0 ld.u32 0x101000 :10\n", "completion", (6, 10)),
        (without(WGMMA, "1 0 * fence.proxy"), "proxy_fence", (3, 6)),
        (without(WGMMA, "1 0 0-31 wait.wgmma"), "completion", (6, 9)),
        (without(COPIES, "1 0 0 cp.async.arrive"), "completion", (3, 7)),
        (without(COPIES, "1 0 32 mbarrier.wait"), "completion", (4, 8)),
        (
            COPIES.replace(":4\n", ":9\n").replace("cp.async.plain 82", "st.shared.u32 0x900210"),
            "block_barrier",
            (9, 8),
        ),
        (without(PEER_LOAD, "1 0 0 fence.proxy"), "proxy_fence", (20, 24)),
        (without(PEER_LOAD, "1 0 0 ld.acquire"), "no_synchronisation", (20, 24)),
        (without(CLUSTER, ARRIVE), "no_synchronisation", (1, 4)),
        (CLUSTER.replace(ARRIVE, RELAXED), "no_synchronisation", (1, 4)),
        (CLUSTER.replace(ARRIVE, "3 0 * fence.mbarrier_init :2\n" + RELAXED), "no_synchronisation", (1, 4)),
        (without(INIT, "1 0 0-31 bar.warp"), "warp_barrier", (1, 5)),
        (INIT.replace("1 0 7 mbarrier.wait", "1 0 37 mbarrier.wait"), "block_barrier", (1, 5)),
        (without(CLUSTER_INIT, "3 0 0 fence"), "no_synchronisation", (1, 5)),
    ],
    ids=[
        "load not waited for",
        "load that completes behind the read of another warp",
        "load that completes behind the read of its own thread",
        "store without a proxy fence",
        "store without a barrier",
        "source of a store not waited for",
        "one group too many pending",
        "only the reads of a store waited for",
        "wgmma without a proxy fence",
        "wgmma not waited for",
        "plain copies whose arrival is missing",
        "plain copies not waited for",
        "a store that the arrival does not release",
        "load of a peer's bytes without a proxy fence",
        "load of a peer's bytes without a flag",
        "cluster barrier that the writer skips",
        "relaxed cluster barrier",
        "relaxed cluster barrier behind a fence of mbarriers alone",
        "mbarrier that another lane has initialised",
        "mbarrier that another warp has initialised",
        "mbarrier of another block without a fence",
    ],
)
def test_a_copy_that_is_not_waited_for_is_a_race(
    detector: DetectorLibrary, trace: str, missing: str, lines: tuple[int, int]
) -> None:
    findings = detector.findings(START + trace)
    edges = {(found["first"]["line"], found["second"]["line"]): found["missing"] for found in findings}
    assert edges.get(lines) == missing, [found["message"] for found in findings]


def test_a_wait_for_the_wrong_mbarrier_orders_nothing(detector: DetectorLibrary) -> None:
    """A copy signals one mbarrier; its reader waits for another."""
    trace = LOAD.replace("mbarrier.wait 0x900100", "mbarrier.wait 0x900108").replace(
        "1 0 32", "1 0 0 mbarrier.init 0x900108 1 :1\n1 0 * bar.sync 0 :2\nmbarrier.complete 0x900108 0\n1 0 32", 1
    )
    edges = [found["missing"] for found in detector.findings(START + trace)]
    assert "completion" in edges


def test_bytes_that_nobody_waits_for_are_a_leak(detector: DetectorLibrary) -> None:
    unwaited = without(LOAD, "1 0 32") + "unregion 0x900000\n"
    pending = without(LOAD, "1 0 32", "complete", "mbarrier.complete") + "unregion 0x900000\n"
    for trace in (unwaited, pending):
        (found,) = detector.findings(START + trace)
        assert (found["kind"], found["second"]["line"], found["second"]["rank"]) == ("mbarrier_leak", 3, 0)
    assert detector.findings(START + LOAD + "unregion 0x900000\n") == []


def test_a_phase_that_ends_before_the_bytes_of_the_last_are_waited_for_is_a_leak(detector: DetectorLibrary) -> None:
    """As where a producer does not wait until its consumers have given a stage back."""
    again = without(LOAD, "1 0 32").replace("77", "78").replace("0x900200", "0x900240")
    (found,) = detector.findings(START + without(LOAD, "1 0 32") + again + "1 0 32 mbarrier.wait 0x900100 1 :9\n")
    assert (found["kind"], found["second"]["line"], found["missing"]) == ("mbarrier_leak", 3, "completion")
    assert "the next phase of an mbarrier of rank 0 was over before anybody waited" in found["message"]
    assert detector.findings(START + LOAD + again + "1 0 32 mbarrier.wait 0x900100 1 :9\n") == []


AFTER = """
finish 1
copy 0 10 0x102000 0x101000 64
"""

FLAG = """
1 0 0 st.release.sys.u64 0x204000 :10
launch 2 1 20 1 32
2 0 0 ld.acquire.sys.u64 0x204000 :20
2 0 0 ld.u32 0x101000 :21
"""

UNTIL_READ = without(STORE, "1 0 0 st.shared")
WHOLE = UNTIL_READ.replace("wait.bulk.read", "wait.bulk")


def test_a_block_may_end_once_its_bulk_copies_have_read_their_source(detector: DetectorLibrary) -> None:
    """The end of the kernel completes what they write."""
    for trace in (UNTIL_READ, WHOLE, UNTIL_READ.replace("commit.bulk :7", "commit.bulk :7\n1 0 0 commit.bulk :7")):
        assert detector.findings(START + trace + AFTER) == []


@pytest.mark.parametrize(
    "trace",
    [
        without(UNTIL_READ, "1 0 0 wait.bulk"),
        without(UNTIL_READ, "1 0 0 commit"),
        UNTIL_READ.replace("wait.bulk.read 0", "wait.bulk.read 1"),
        UNTIL_READ.replace("1 0 0 wait.bulk.read", "1 0 1 wait.bulk.read"),
    ],
    ids=["no wait", "no group", "one group too many pending", "wait of another thread"],
)
def test_a_block_that_ends_while_a_bulk_copy_reads_its_memory_is_a_leak(detector: DetectorLibrary, trace: str) -> None:
    (found,) = detector.findings(START + trace + AFTER)
    assert (found["kind"], found["second"]["line"], found["second"]["thread"]) == ("bulk_copy_leak", 6, 0)
    assert (found["second"]["operation"], found["missing"]) == ("read", "completion")


def test_a_bulk_copy_is_complete_for_peers_once_its_issuer_has_waited_for_its_writes(detector: DetectorLibrary) -> None:
    """A wait for the reads of its source, or none, leads no flag on."""
    assert detector.findings(START + WHOLE + FLAG) == []
    for trace in (UNTIL_READ, without(UNTIL_READ, "1 0 0 wait.bulk")):
        (found,) = detector.findings(START + trace + FLAG)
        assert (found["first"]["line"], found["second"]["line"], found["missing"]) == (6, 21, "completion")
