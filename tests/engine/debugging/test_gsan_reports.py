"""Assertions of GSan as the CUDA driver prints them, and sources whose order GSan does not know."""

from __future__ import annotations

import pytest

from pkb_gym.engine.debugging.gsan_reports import RACES, assertions_in, unseen_synchronisation

OUTPUT = """\
a line of the candidate
candidate.py:23: : block: [3,0,0], thread: [0,0,0] Assertion `Read after write race detected` failed.
candidate.py:23: : block: [3,0,0], thread: [1,0,0] Assertion `Read after write race detected` failed.
candidate.py:23: : block: [7,0,0], thread: [1,0,0] Assertion `Read after write race detected` failed.
/tmp/scratch/4/candidate.py:31: : block: [0,2,0], thread: [32,0,0] Assertion `Write after read race detected` failed.
<unknown>:0: : block: [0,0,0], thread: [0,0,0] Assertion `GSan clock buffer token overwritten` failed.
candidate.py:9: kernel: block: [0,0,0], thread: [0,0,0] Assertion `rows > 0` failed.
Assertion `Write after write race detected` failed.
RuntimeError: CUDA error: device-side assert triggered
"""


def test_each_text_and_line_is_found_once() -> None:
    assert [str(one) for one in assertions_in(OUTPUT)] == [
        "read after write race detected at candidate.py:23, program [3,0,0]",
        "write after read race detected at candidate.py:31, program [0,2,0]",
        "GSan clock buffer token overwritten at <unknown>:0, program [0,0,0]",
        "rows > 0 at candidate.py:9, program [0,0,0]",
    ]
    assert [one.is_race for one in assertions_in(OUTPUT)] == [True, True, False, False]
    assert assertions_in("no assertion\n") == []


def test_the_races_are_those_of_the_library() -> None:
    """Texts of `assertOrderedOrCompatible` in GSanLibrary.cu, of Triton 3.9.0."""
    assert {
        "Read after write race detected",
        "Write after read race detected",
        "Write after write race detected",
    } == RACES


@pytest.mark.parametrize(
    "lines", ["x" * 200_000, "a:1: " * 40_000, "a:1: block: [0,0,0], thread: [0,0,0] Assertion `" * 4000]
)
def test_long_lines_take_no_time(lines: str) -> None:
    assert assertions_in(lines) == []


SYMMETRIC = "import torch.distributed as dist\nimport torch.distributed._symmetric_memory as symm_mem\n"


@pytest.mark.parametrize(
    ("source", "unseen"),
    [
        ("tl.store(x, tl.load(y))", ""),
        ("tl.inline_asm_elementwise('bar.sync 0;')", "inline assembly"),
        ("from torch.utils.cpp_extension import load_inline", "CUDA beside Triton"),
        ("with torch.cuda.stream(torch.cuda.Stream()): ...", "streams, events and graphs"),
        ("graph = torch.cuda.CUDAGraph()", "streams, events and graphs"),
        ("while tl.load(flag, volatile=True) == 0: ...", "volatile accesses"),
        ("import torch.distributed as dist\ndist.all_gather(a, b)", ""),
        (f"{SYMMETRIC}handle.barrier()", ""),
        (f"{SYMMETRIC}dist.barrier()", "collectives"),
        (f"{SYMMETRIC}dist.barrier()\ntl.inline_asm_elementwise()", "inline assembly, collectives"),
    ],
)
def test_means_of_synchronisation_that_gsan_does_not_see(source: str, unseen: str) -> None:
    assert unseen_synchronisation(source) == unseen
