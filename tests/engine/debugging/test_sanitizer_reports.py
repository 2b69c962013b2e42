"""What is read off the output of sanitizers."""

from __future__ import annotations

import time

import pytest

from pkb_gym.engine.debugging.sanitizer_reports import MAX_REPORTS, reports_in

ADDRESS = """==7==ERROR: AddressSanitizer: use-after-poison on address 0x7f
WRITE of size 2 at 0x7f thread T0
    #0 0x7f in pkb::bf16::operator=(float) /opt/here/include/pkb/bf16.h:20
    #1 0x7f in solution(tvm::ffi::TensorView) /tmp/kernel.cpp:12
    #2 0x7f in __tvm_ffi_solution /tmp/kernel.cpp:40
SUMMARY: AddressSanitizer: use-after-poison /opt/here/include/pkb/bf16.h:20 in pkb::bf16::operator=(float)
"""


@pytest.mark.parametrize("folder", ["/tmp", "/tmp/pkb-scratch-a_1b2c3d", "/scratch/me/pkb-scratch-a_1b2c3d"])
def test_a_summary_in_a_header_names_the_candidates_own_lines(folder: str):
    (report,) = reports_in("address", ADDRESS.replace("/tmp", folder), 86)
    assert report.found
    assert (
        report.summary
        == "outside of every tensor: use-after-poison pkb/bf16.h:20 in pkb::bf16::operator=(float) (kernel.cpp:12)"
    )
    assert "/opt/here" not in report.report and "/tmp" not in report.report and "scratch" not in report.report


def test_a_finding_inside_a_copy_names_the_line_that_copies():
    text = """    #0 memcpy ../../../../src/libsanitizer/sanitizer_common/sanitizer_common_interceptors.inc:827
    #1 in pkb::Comm::put(void*, void const*, unsigned long, int) const /opt/include/pkb/symm_cpu.h:24
    #2 in solution(tvm::ffi::TensorView) /tmp/kernel.cpp:16
SUMMARY: AddressSanitizer: use-after-poison ../../src/libsanitizer/sanitizer_common/common.inc:8 in memcpy
"""
    (report,) = reports_in("address", text, 86)
    assert report.summary == "outside of every tensor: use-after-poison common.inc:8 in memcpy (kernel.cpp:16)"


def test_the_same_report_of_every_rank_counts_once():
    assert len(reports_in("address", ADDRESS * 3, 86)) == 1


def test_lines_that_name_the_candidate_are_left_as_they_are():
    text = "/tmp/kernel.cpp:8:25: runtime error: division by zero\nkernel.cpp:9:1: runtime error: shift\n"
    found = [report.summary for report in reports_in("undefined", text, 1)]
    assert found == ["kernel.cpp:8:25: runtime error: division by zero", "kernel.cpp:9:1: runtime error: shift"]


def test_races_are_found_and_limited():
    text = "".join(f"SUMMARY: ThreadSanitizer: data race /tmp/kernel.cpp:{line} in f\n" for line in range(20))
    reports = reports_in("thread", text, 86)
    assert len(reports) == MAX_REPORTS and reports[3].summary == "data race kernel.cpp:3 in f"
    assert reports[0].report and not reports[1].report


def test_a_clean_run_reports_its_end():
    for status, words in ((0, "nothing found"), (1, "outputs differ"), (139, "ended with status 139")):
        (report,) = reports_in("thread", "rank 0\n", status)
        assert not report.found and words in report.summary


@pytest.mark.parametrize("piece", ["/", "/a", "../", "/include/", "/tmp/", "a/include/pkb"])
def test_no_output_takes_long(piece: str):
    """Paths of 64 KiB took half a minute, as each of their folders was looked at as the beginning of one."""
    began = time.process_time()
    reports_in("address", piece * ((1 << 20) // len(piece)), 86)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("sanitizer", "piece"),
    [("undefined", "1"), ("undefined", "1:"), ("memcheck", "0x0 in "), ("memcheck", " [1 hazards]")],
)
def test_a_line_of_any_length_takes_no_time(sanitizer, piece):
    """A candidate writes it, and everybody waits for the interpreter: a minute for 120,000 digits."""
    began = time.process_time()
    reports_in(sanitizer, "========= Invalid " + piece * ((1 << 20) // len(piece)), 86)
    reports_in(sanitizer, piece * ((1 << 20) // len(piece)), 86)
    assert time.process_time() - began < 10
