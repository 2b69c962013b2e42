"""The call contract: arrival and departure of ranks' calls, in traces of events."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from emulator.tests.traces import DetectorLibrary

BEGUN = "2 0 0 st.relaxed.sys.u64 0x104000 :2\n1 0 0 ld.acquire.sys.u64 0x104000 :3\n"
"""Rank 1 signals rank 0 that its call has begun; a kernel's beginning is a fence."""
DONE = "1 0 0 st.release.sys.u64 0x204000 :7\n2 0 0 ld.acquire.sys.u64 0x204000 :8\n"
"""Rank 0 signals rank 1 that it is done with its tensors."""
ENDS = "finish 1\nfinish 2\ndepart 1 20 1\ndepart 0 10 1\n"


def call(access: str, begun: str = BEGUN, done: str = DONE) -> str:
    """One call of both ranks in which rank 0 touches a tensor of rank 1."""
    begin = "arrive 0 10 1\narrive 1 20 1\nlaunch 1 0 10 1 32\nlaunch 2 1 20 1 32\n"
    return f"{begin}{begun}1 0 0 {access} :5\n{done}{ENDS}"


READ, WRITE = "ld.u32 0x200010", "st.u32 0x201010"


@pytest.mark.parametrize("access", [READ, WRITE])
def test_a_call_that_waits_at_both_ends_keeps_the_contract(detector: DetectorLibrary, access: str) -> None:
    assert detector.findings(call(access)) == []


@pytest.mark.parametrize(
    ("trace", "missing", "tensor", "operations"),
    [
        (call(READ, begun=""), "arrival", "x", ("write", "read")),
        (call(WRITE, begun=""), "arrival", "out", ("write", "write")),
        (call(READ, done=""), "departure", "x", ("read", "write")),
        (call(WRITE, done=""), "departure", "out", ("write", "write")),
    ],
    ids=["early read", "early write", "late read", "late output"],
)
def test_a_call_that_does_not_wait_breaks_it(
    detector: DetectorLibrary, trace: str, missing: str, tensor: str, operations: tuple[str, str]
) -> None:
    found = detector.findings(trace)[0]
    assert (found["missing"], found["tensor"], found["owner"], found["index"]) == (missing, tensor, 1, 4)
    assert (found["first"]["operation"], found["second"]["operation"]) == operations
    thread = next(access for access in (found["first"], found["second"]) if access["kernel"])
    assert (thread["rank"], thread["block"], thread["thread"], thread["line"]) == (0, 0, 0, 5)
    assert found["call"] == 1


def test_an_early_read_is_distinguished_from_a_late_one_by_the_calls(detector: DetectorLibrary) -> None:
    """Rank 0 is in its second call when it reads what rank 1 still has in its first."""
    trace = (
        "arrive 0 10 1\ndepart 0 10 1\narrive 0 10 2\nlaunch 1 0 10 1 32\n1 0 0 ld.u32 0x200000 :5\n"
        "arrive 1 20 1\ndepart 1 20 1\n"
    )
    assert detector.findings(trace)[0]["missing"] == "arrival"


@pytest.mark.parametrize(
    "trace",
    [
        "arrive 0 10 1\nlaunch 1 0 11 1 32\n1 0 0 st.u32 0x101010 :5\n",
        "arrive 0 10 1\nrecord 0 10 7 1\nawait 0 11 7 1\nlaunch 1 0 11 1 32\n1 0 0 st.u32 0x101010 :5\ndepart 0 10 1\n",
    ],
    ids=["before it begins", "after its end"],
)
def test_a_rank_s_own_other_stream_lacks_an_event(detector: DetectorLibrary, trace: str) -> None:
    """No signal of the rank to itself would order its streams."""
    assert detector.findings(trace)[0]["missing"] == "stream_order"


def test_a_flag_of_too_small_a_scope_is_named_before_the_arrival(detector: DetectorLibrary) -> None:
    found = detector.findings(call(READ, begun=BEGUN.replace("relaxed.sys", "relaxed.gpu")))
    on_argument = next(finding for finding in found if finding["tensor"] == "x")
    assert on_argument["missing"] == "scope"
    assert (on_argument["edge_from"]["line"], on_argument["edge_to"]["line"]) == (2, 3)
    assert "rank 1 stores the flag with .gpu scope" in on_argument["message"]
    assert on_argument["message"].endswith("use .sys")


def test_scratch_that_is_reused_before_its_reader_is_done(detector: DetectorLibrary) -> None:
    """The second call's write into a box that the first call's reader has not released."""

    def calls(second_box: int) -> str:
        return f"""
launch 1 0 10 1 32
launch 2 1 20 1 32
1 0 0 st.u32 0x202000 :1
1 0 0 st.release.sys.u64 0x204000 :2
2 0 0 ld.acquire.sys.u64 0x204000 :3
finish 1
launch 3 0 10 1 32
3 0 0 st.u32 {second_box:#x} :4
2 0 0 ld.u32 0x202000 :5
"""

    assert detector.findings(calls(0x202800)) == []
    (found,) = detector.findings(calls(0x202000))
    assert (found["first"]["line"], found["second"]["line"]) == (4, 5)
    assert (found["missing"], found["region"], found["owner"]) == ("no_synchronisation", "scratch", 1)


def test_a_late_reader_of_a_box_is_found_when_it_is_written_again(detector: DetectorLibrary) -> None:
    trace = """
launch 1 0 10 1 32
launch 2 1 20 1 32
1 0 0 st.u32 0x202000 :1
1 0 0 st.release.sys.u64 0x204000 :2
2 0 0 ld.acquire.sys.u64 0x204000 :3
2 0 0 ld.u32 0x202000 :4
{}
1 0 0 st.u32 0x202000 :7
"""
    empty = "2 0 0 st.release.sys.u64 0x104000 :5\n1 0 0 ld.acquire.sys.u64 0x104000 :6"
    assert detector.findings(trace.format(empty)) == []
    (found,) = detector.findings(trace.format(""))
    assert (found["first"]["line"], found["second"]["line"], found["first"]["operation"]) == (4, 7, "read")


def test_findings_of_one_pair_of_lines_are_counted(detector: DetectorLibrary) -> None:
    trace = "launch 1 0 10 1 64\n1 0 0-31 st.u32 0x102000+4 :1\n1 0 32-63 ld.u32 0x102000+4 :2\n"
    (found,) = detector.findings(trace)
    assert found["occurrences"] == 32


def test_a_report_keeps_so_many_findings_and_counts_the_rest(detector: DetectorLibrary) -> None:
    trace = "launch 1 0 10 1 64\n" + "".join(
        f"1 0 0 st.u32 {0x102000 + 16 * i:#x} :{i + 1}\n1 0 32 ld.u32 {0x102000 + 16 * i:#x} :{i + 101}\n"
        for i in range(5)
    )
    report = detector.report(trace, max_findings=3)
    assert (len(report["findings"]), report["dropped"]) == (3, 2)


def test_without_races_only_the_rest_is_found(detector: DetectorLibrary) -> None:
    trace = "launch 1 0 10 1 64\n1 0 0 st.u32 0x102000 :1\n1 0 32 ld.u32 0x102000 :2\n1 0 0 ld.u32 0x100402 :3\n"
    kinds = {found["kind"] for found in detector.report(trace, races=False)["findings"]}
    assert kinds == {"out_of_bounds", "misaligned"}


BLOCKS = 24
"""Blocks of a grid that each meet their counterpart: clocks so long that entries which others cover are dropped."""


def word(rank: int, block: int, line: int) -> str:
    """The signal of a block of a rank, another for each meeting."""
    return f"{0x104000 + rank * 0x100000 + 8 * block + 0x100 * line:#x}"


def meeting(line: int, waits: Iterable[int]) -> str:
    """Each block of either rank signals its counterpart, and waits for it: of rank 0 only those of `waits`."""
    signals = [(rank, b) for rank in (0, 1) for b in range(BLOCKS)]
    loads = [(0, b) for b in waits] + signals[BLOCKS:]
    return "".join(
        f"{{{rank}}} {b} 0 st.release.sys.u64 {word(1 - rank, b, line)} :{line}\n" for rank, b in signals
    ) + "".join(f"{{{rank}}} {b} 0 ld.acquire.sys.u64 {word(rank, b, line)} :{line + 1}\n" for rank, b in loads)


def calls_of_many_blocks(calls: int, hasty: tuple[int, int] | None = None) -> str:
    """Each block writes an element of the peer's output between two meetings.

    Args:
        calls: Number of calls.
        hasty: Call and block of rank 0 that does not wait at the first meeting.
    """
    trace = ""
    for call_number in range(calls):
        launches = {rank: 1 + 2 * call_number + rank for rank in (0, 1)}
        waits = [b for b in range(BLOCKS) if (call_number, b) != hasty]
        writes = "".join(
            f"{{{rank}}} {b} 0 st.u32 {0x101000 + (1 - rank) * 0x100000 + 4 * b:#x} :5\n"
            for rank in (0, 1)
            for b in range(BLOCKS)
        )
        events = meeting(3, waits) + writes + meeting(7, range(BLOCKS))
        begin = "".join(
            f"arrive {r} {10 + 10 * r} {call_number}\nlaunch {{{r}}} {r} {10 + 10 * r} {BLOCKS} 32\n" for r in (0, 1)
        )
        end = "".join(f"finish {{{r}}}\ndepart {r} {10 + 10 * r} {call_number}\n" for r in (0, 1))
        trace += (begin + events + end).format(launches[0], launches[1])
    return trace


def test_long_clocks_order_what_they_did_before_entries_were_dropped(detector: DetectorLibrary) -> None:
    assert detector.findings(calls_of_many_blocks(4)) == []


@pytest.mark.parametrize("hasty", [(1, 0), (3, BLOCKS - 1)])
def test_one_block_of_many_that_does_not_wait_is_found(detector: DetectorLibrary, hasty: tuple[int, int]) -> None:
    (found,) = detector.findings(calls_of_many_blocks(4, hasty))
    assert (found["missing"], found["tensor"], found["owner"], found["index"]) == ("arrival", "out", 1, hasty[1])
    assert (found["call"], found["second"]["block"], found["second"]["line"]) == (hasty[0], hasty[1], 5)
