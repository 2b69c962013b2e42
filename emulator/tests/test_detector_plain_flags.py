"""Flags that plain stores raise, and what leads from data to its reader through several flags."""

from __future__ import annotations

import pytest

from emulator.tests.test_detector_classes import ONE, TWO_RANKS, classes
from emulator.tests.traces import DetectorLibrary

FLAG = ("weak_order", "weak_flag")


def handed_over(before: str, after: str, between: str = "") -> str:
    """Data and a plain flag of rank 0, which rank 1 polls by a volatile load, with something beside both."""
    return (
        f"{TWO_RANKS}1 0 0 st.u32 0x202000 :1\n{before}1 0 0 st.u32 0x204000 :3\n{between}"
        f"2 0 0 ld.volatile.u32 0x204000 :4\n{after}2 0 0 ld.u32 0x202000 :6\n"
    )


@pytest.mark.parametrize(
    ("trace", "has_race"),
    [
        (handed_over("1 0 0 fence.sc.sys :2\n", "2 0 0 fence.sc.sys :5\n"), False),
        (handed_over("1 0 0 fence.sc.sys :2\n", "2 0 0 fence.sc.sys :5\n", "finish 1\n"), False),
        (handed_over("", "2 0 0 fence.sc.sys :5\n"), True),
        (handed_over("1 0 0 fence.sc.sys :2\n", ""), True),
        (handed_over("", "2 0 0 fence.sc.sys :5\n", "1 0 0 fence.sc.sys :2\n"), True),
        (handed_over("1 0 0 fence.sc.gpu :2\n", "2 0 0 fence.sc.sys :5\n"), True),
        (handed_over("1 0 0 fence.acq_rel.sys :2\n", "2 0 0 fence.sc.sys :5\n"), True),
    ],
    ids=["both", "writer has ended", "reader's", "writer's", "writer's too late", "too small a scope", "acq_rel"],
)
def test_two_fences_of_sequential_consistency_have_one_order_around_a_plain_flag(
    detector: DetectorLibrary, trace: str, has_race: bool
) -> None:
    """PTX ISA 8.10: by the other order the load would come before the store that it observes."""
    expected = {(3, 4): FLAG} | ({(1, 6): FLAG} if has_race else {})
    assert classes(detector, trace) == expected


def test_a_plain_flag_is_one_when_the_block_of_its_writer_has_ended(detector: DetectorLibrary) -> None:
    """Data of another thread of that block, which met the writer at a barrier."""
    trace = handed_over("1 0 * bar.sync 0 :2\n", "", "finish 1\n").replace(
        "1 0 0 st.u32 0x202000", "1 0 40 st.u32 0x202000"
    )
    assert classes(detector, trace) == {(3, 4): FLAG, (1, 6): FLAG}


@pytest.mark.parametrize(
    ("take", "lock"),
    [
        ("atom.acquire.gpu.cas.u32", ("weak_order", "weak_flag")),
        ("atom.acquire.gpu.exch.u32", ("weak_order", "weak_flag")),
        ("atom.acquire.gpu.add.u32", ("unsynchronised", "weak_flag")),
    ],
)
def test_a_lock_that_a_plain_store_gives_back_is_a_flag(
    detector: DetectorLibrary, take: str, lock: tuple[str, str]
) -> None:
    """An addition may lose the store, or the store the addition; what it guards has a flag all the same."""
    trace = (
        f"{ONE}1 0 0 st.u32 0x102000 :1\n1 0 0 st.u32 0x104000 :2\n1 1 0 {take} 0x104000 :3\n1 1 0 ld.u32 0x102000 :4\n"
    )
    assert classes(detector, trace) == {(2, 3): lock, (1, 4): FLAG}


def test_a_compare_and_swap_that_fails_is_a_load(detector: DetectorLibrary) -> None:
    trace = f"{ONE}1 1 0 atom.failed.acquire.gpu.cas.u32 0x104000 :3\n1 0 0 st.u32 0x104000 :2\n"
    assert classes(detector, trace) == {(3, 2): FLAG}
    assert classes(detector, trace.replace(".failed", "")) == {(3, 2): ("unsynchronised", "weak_flag")}


def test_polls_before_the_data_do_not_hide_the_flags_behind_it(detector: DetectorLibrary) -> None:
    """Two flags in a row, after a hundred arrivals at a counter that the reader polls, which make no edge."""
    polls = "1 1 40 atom.relaxed.gpu.add.u32 0x104010 :9\n3 0 0 ld.relaxed.gpu.u32 0x104010 :10\n"
    trace = f"""{ONE}launch 3 0 11 1 32
{100 * polls}1 0 0 st.u32 0x102000 :1
1 0 0 st.volatile.u32 0x104000 :2
1 1 0 ld.volatile.u32 0x104000 :3
1 1 0 st.volatile.u32 0x104008 :4
3 0 0 ld.volatile.u32 0x104008 :5
3 0 0 ld.u32 0x102000 :6
"""
    assert classes(detector, trace) == {(1, 6): ("weak_order", "release")}
