"""Bounds, bytes that nobody wrote, alignment, divergent barriers, and advice, in traces of events."""

from __future__ import annotations

import pytest

from emulator.tests.traces import DetectorLibrary

KERNEL = "launch 1 0 10 1 64\n"


@pytest.mark.parametrize(
    ("access", "tensor", "owner", "offset"),
    [
        ("ld.u32 0x100400", "x", 0, 0x400),
        ("st.v4.u32 0x201400", "out", 1, 0x400),
        ("ld.v4.u32 0x2003f8", "x", 1, 0x3F8),
    ],
)
def test_an_access_beside_all_tensors_is_out_of_bounds(
    detector: DetectorLibrary, access: str, tensor: str, owner: int, offset: int
) -> None:
    findings = detector.findings(f"{KERNEL}1 0 3 {access} :7\n")
    found = next(found for found in findings if found["kind"] == "out_of_bounds")
    assert (found["tensor"], found["owner"], found["offset"]) == (tensor, owner, offset)
    assert (found["second"]["line"], found["second"]["thread"]) == (7, 3)
    assert found["index"] == offset // 4


def test_accesses_up_to_the_end_of_a_tensor_are_in_bounds(detector: DetectorLibrary) -> None:
    assert detector.findings(f"{KERNEL}1 0 0 ld.v4.u32 0x1003f0 :7\n1 0 0-31 ld.u32 0x100000+4 :8\n") == []


def test_bytes_that_nobody_wrote(detector: DetectorLibrary) -> None:
    region = "region allocation 0 buffer 0xa00000 0x2000 4 0\n"
    (found,) = detector.findings(f"{region}{KERNEL}1 0 0 st.u32 0xa00000 :1\n1 0 0 ld.v2.u32 0xa00000 :2\n")
    assert (found["kind"], found["tensor"], found["offset"], found["bytes"]) == ("uninitialised_read", "buffer", 4, 4)
    assert found["second"]["line"] == 2
    written = f"{region}{KERNEL}1 0 0-31 st.v4.u32 0xa00ff8+16 :1\n1 0 0-31 ld.v4.u32 0xa00ff8+16 :2\n"
    assert [found["kind"] for found in detector.findings(written)] == ["misaligned", "misaligned"]
    copied = f"{region}copy 0 10 0xa00000 0x100000 64\n{KERNEL}1 0 0 ld.v4.u32 0xa00030 :2\n"
    assert detector.findings(copied) == []


def test_memory_that_is_allocated_again_has_no_past(detector: DetectorLibrary) -> None:
    trace = """
region allocation 0 buffer 0xa00000 0x2000 4 1
launch 1 0 10 1 32
1 0 0 st.u32 0xa00000 :1
unregion 0xa00000
region allocation 0 again 0xa00000 0x2000 4 {}
launch 2 0 11 1 32
2 0 0 ld.u32 0xa00000 :2
"""
    assert detector.findings(trace.format(1)) == []
    (found,) = detector.findings(trace.format(0))
    assert (found["kind"], found["tensor"]) == ("uninitialised_read", "again")


def test_a_misaligned_access(detector: DetectorLibrary) -> None:
    (found,) = detector.findings(f"{KERNEL}1 0 0 ld.v4.u32 0x100008 :4\n")
    assert (found["kind"], found["tensor"], found["index"]) == ("misaligned", "x", 2)


def test_a_barrier_that_part_of_a_warp_comes_to(detector: DetectorLibrary) -> None:
    (found,) = detector.findings(f"{KERNEL}1 0 0-15 bar.arrive 1 :4\n")
    assert (found["kind"], found["second"]["line"], found["second"]["rank"]) == ("divergent_barrier", 4, 0)
    assert detector.findings(f"{KERNEL}1 0 0-31 bar.arrive 1 :4\n") == []


def test_cells_of_every_size_agree(detector: DetectorLibrary) -> None:
    """A vector's store races with a byte's load, and a byte's with a vector's; neighbours do not."""
    wide = f"{KERNEL}1 0 0 st.v4.u32 0x102000 :1\n1 0 32 ld.u8 0x10200b :2\n"
    narrow = f"{KERNEL}1 0 0 st.u8 0x10200b :1\n1 0 32 ld.v4.u32 0x102000 :2\n"
    beside = f"{KERNEL}1 0 0-31 st.u8 0x102000+1 :1\n1 0 32-63 st.u16 0x102020+2 :2\n1 0 32 ld.u8 0x102060 :3\n"
    assert [(found["offset"], found["bytes"]) for found in detector.findings(wide)] == [(0xB, 1)]
    assert [(found["offset"], found["bytes"]) for found in detector.findings(narrow)] == [(0xB, 1)]
    assert detector.findings(beside) == []


def test_every_reader_of_a_word_counts(detector: DetectorLibrary) -> None:
    """A store is ordered after one reader of several; the others race with it."""
    readers = "launch 1 0 10 8 32\n" + "".join(f"1 {block} 0-31 ld.u32 0x102000 :1\n" for block in range(7))
    ordered = "".join(
        f"1 {block} 0-31 bar.warp.sync :2\n1 {block} 0 atom.release.gpu.u64 0x104000 :3\n" for block in range(7)
    )
    write = "1 7 0 ld.acquire.gpu.u64 0x104000 :4\n1 7 0 st.u32 0x102000 :5\n"
    assert detector.findings(readers + ordered + write) == []
    one_less = ordered.replace("1 3 0 atom.release.gpu.u64 0x104000 :3\n", "")
    (found,) = detector.findings(readers + one_less + write)
    assert (found["first"]["block"], found["first"]["line"], found["second"]["line"]) == (3, 1, 5)


def test_bytes_over_links_and_advice(detector: DetectorLibrary) -> None:
    near = "".join(f"1 0 0-31 ld.u32 {0x100000 + 128 * i:#x}+4 :1\n" for i in range(4))
    apart = "".join(f"1 0 0-31 ld.u32 {0x202000 + 4 * i:#x}+64 :2\n" for i in range(4))
    banks = "".join(f"1 0 0-31 ld.shared.u32 {0x900000 + 4 * i:#x}+128 :3\n" for i in range(4))
    rows = "".join(f"1 0 0-31 ld.shared.v4.u32 {0x900000 + 512 * i:#x}+16 :4\n" for i in range(4))
    report = detector.report(f"arrive 0 10 5\n{KERNEL}{near}{apart}{banks}{rows}")
    assert report["findings"] == []
    assert report["links"] == [{"rank": 0, "owner": 1, "call": 5, "read_bytes": 4 * 128, "written_bytes": 0}]
    advice = {(item["kind"], item["line"]): item for item in report["advice"]}
    assert set(advice) == {("uncoalesced", 2), ("bank_conflicts", 3)}
    assert (advice["uncoalesced", 2]["actual"], advice["uncoalesced", 2]["least"]) == (4 * 32, 4 * 4)
    assert (advice["bank_conflicts", 3]["actual"], advice["bank_conflicts", 3]["least"]) == (4 * 32, 4)
